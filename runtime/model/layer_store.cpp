#include "runtime/model/layer_store.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "format/base/result.h"
#include "kernels/cpu/cpu_device.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

// Reading of one layer into host memory, in blocks.
class LayerStore::Reading {
 public:
  struct Block {
    uint64_t offset = 0;  // in the layer's memory
    uint64_t bytes = 0;
  };

  Reading(size_t blocks, uint64_t bytes) : blocks_left_(blocks), bytes_(bytes) {}

  /// Called by the thread that read the block.
  void finish_block(const Block& block, const Result<void>& outcome) {
    const std::lock_guard lock(mutex_);
    if (!outcome && !error_) error_ = outcome.error();
    --blocks_left_;
    arrived_.push_back(block);
    changed_.notify_all();
  }

  /// Blocks until more blocks are read, and returns those not returned before; empty: all were. Errors: the first
  /// failure of a block, once no block is being read; cancelled.
  [[nodiscard]] Result<std::vector<Block>> next(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const auto has_news = [&] { return blocks_left_ == 0 || (!arrived_.empty() && !error_); };
    if (!changed_.wait(lock, stop, has_news)) return Error{ErrorKind::cancelled, "the run was interrupted"};
    if (error_) return *error_;
    return std::exchange(arrived_, {});
  }

  /// Bytes of the whole layer.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  size_t blocks_left_;
  std::vector<Block> arrived_;
  std::optional<Error> error_;
  const uint64_t bytes_;
};

namespace {

// Reads a block of a tensor that is used as stored, directly into its place.
Result<void> read_block(Tier& tier, const format::TensorEntry& tensor, uint64_t offset, std::span<std::byte> into,
                        const std::stop_token& stop) {
  auto read = tier.read(tensor.file, tensor.range.begin + offset, into, stop);
  return read ? read : read.error().in(tensor.name);
}

// Reads a plane that is converted or checked; most are small: norms, scales.
Result<void> read_whole(Tier& tier, const format::StoredPlane& plane, std::span<std::byte> into,
                        const std::stop_token& stop) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<const std::byte>> stored;
  for (const format::TensorEntry* tensor : plane.tensors) {
    TRY(read_block(tier, *tensor, 0, bytes.emplace_back(tensor->range.size()), stop));
    stored.emplace_back(bytes.back());
  }
  return plane.finish(tier.checkpoint(), stored, into);
}

}  // namespace

LayerStore::LayerStore(const LoadContext& context, format::LayerMap pass) : context_(context), pass_(std::move(pass)) {}
LayerStore::~LayerStore() {
  if (copies_ != nullptr) copies_->synchronize();  // before places are freed
}

Result<std::unique_ptr<LayerStore>> LayerStore::load(const LoadContext& context, const ModelConfig& config,
                                                     const AttentionOptions& attention, const format::LayerMap& pass,
                                                     const LayerStreaming& streaming, const std::stop_token& stop) {
  std::unique_ptr<LayerStore> store(new LayerStore(context, pass));
  for (const LayerId layer : pass) {
    DSPACK_CHECK(layer.value < config.layers, "the layer map names a layer that the model lacks");
    if (streaming.layers.contains(layer)) {
      auto& streamed = store->streamed_[layer];
      if (streamed != nullptr) continue;  // a repeated layer
      streamed = std::make_unique<Streamed>();
      TRY_ASSIGN(WeightGroup group, find_layer(context, config, attention, layer, streamed->weights));
      TRY(load_experts_by_token(context, config, layer, streamed->weights.moe.router, stop));
      streamed->group.emplace(std::move(group));
      if (context.progress != nullptr) context.progress->item_done();
    } else {
      auto& resident = store->resident_[layer];
      if (resident != nullptr) continue;
      TRY_ASSIGN(resident, load_layer(context, config, attention, layer, stop));
      if (context.progress == nullptr) continue;
      context.progress->advanced(resident->memory->size_bytes());
      context.progress->item_done();
    }
  }
  if (store->streamed_.empty()) return store;
  store->transfers_ = std::make_unique<TransferPool>(context.access.weights().depth());
  if (!context.device.is_host()) {
    store->copies_ = context.device.make_queue();
    TRY(store->keep(streaming.kept, stop));
  }
  TRY(store->make_places(streaming.buffers));
  return store;
}

Result<void> LayerStore::make_places(uint32_t buffers) {
  DSPACK_CHECK(buffers > 0, "layers that stream need a place");
  uint64_t largest = 0;
  uint64_t largest_read = 0;
  for (const auto& [id, layer] : streamed_) {
    largest = std::max(largest, layer->group->size_bytes());
    if (layer->kept == nullptr) largest_read = std::max(largest_read, layer->group->size_bytes());
  }
  for (size_t i = 0; i < std::min<size_t>(buffers, streamed_.size()); ++i) {
    LayerBuffer& place = places_.emplace_back();
    auto memory = context_.device.allocate(largest);
    if (memory && copies_ != nullptr && largest_read > 0) {
      auto staging = context_.device.allocate_host(largest_read);
      if (!staging) return staging.error().in("memory for layers that are read in every pass");
      place.staging = std::move(*staging);
    }
    if (!memory) return memory.error().in("memory for layers that are brought in every pass");
    place.memory = std::move(*memory);
  }
  return {};
}

Result<void> LayerStore::keep(const std::set<LayerId>& layers, const std::stop_token& stop) {
  for (const LayerId id : layers) {
    Streamed& layer = *streamed_.at(id);
    auto memory = context_.device.allocate_host(layer.group->size_bytes());
    if (!memory) return memory.error().in("memory for layers that are copied to the GPU in every pass");
    layer.kept = std::move(*memory);
    const auto reading = start_reading(layer, kernels::host_bytes(*layer.kept));
    while (true) {
      const auto blocks = reading->next(stop);
      if (!blocks) return blocks.error().in(layer_module(id));
      if (blocks->empty()) break;
    }
    context_.access.count(WeightPurpose::always_needed, reading->bytes());
    if (context_.progress != nullptr) context_.progress->advanced(layer.kept->size_bytes());
  }
  return {};
}

std::shared_ptr<LayerStore::Reading> LayerStore::start_reading(const Streamed& layer, std::span<std::byte> into) {
  Tier& tier = context_.access.weights();
  uint64_t bytes = 0;
  struct Work {
    Reading::Block block;
    std::function<Result<void>(const std::stop_token&)> read;
  };
  std::vector<Work> pieces;
  for (const WeightGroup::PlacedPlane& part : layer.group->parts()) {
    const format::StoredPlane& plane = part.plane;
    const format::TensorEntry& tensor = plane.elements();
    const uint64_t total = tensor.range.size();
    for (const format::TensorEntry* each : plane.tensors)
      bytes += each->range.size();
    if (!plane.is_as_stored()) {
      const auto to = into.subspan(part.offset, plane.bytes);
      pieces.push_back({.block = {.offset = part.offset, .bytes = plane.bytes},
                        .read = [&tier, &plane, to](const auto& stop) { return read_whole(tier, plane, to, stop); }});
      continue;
    }
    const uint64_t block = tier.block_bytes(tensor.file);
    for (uint64_t done = 0; done < total; done += block) {
      const auto to = into.subspan(part.offset + done, std::min(block, total - done));
      pieces.push_back(
          {.block = {.offset = part.offset + done, .bytes = to.size()},
           .read = [&tier, &tensor, done, to](const auto& stop) { return read_block(tier, tensor, done, to, stop); }});
    }
  }
  const auto reading = std::make_shared<Reading>(pieces.size(), bytes);
  for (Work& piece : pieces) {
    transfers_->submit(Urgency::demand, 0, [reading, piece = std::move(piece)](const std::stop_token& stop) {
      reading->finish_block(piece.block, guarded([&] { return piece.read(stop); }));
    });
  }
  return reading;
}

void LayerStore::copy(LayerBuffer& place, uint64_t offset, std::span<const std::byte> from) {
  copies_->upload({.buffer = place.memory.get(), .offset_bytes = offset}, from);
}

void LayerStore::start(Streamed& layer, LayerBuffer& place) {
  layer.group->bind(*place.memory);
  place.holds = &layer;
  // An abandoned pass may have left a copy into it under way.
  if (place.arrival != nullptr) std::exchange(place.arrival, nullptr)->wait();
  if (layer.kept != nullptr) {
    copy(place, 0, kernels::host_bytes(*layer.kept).first(layer.group->size_bytes()));
    place.arrival = copies_->mark();
    return;
  }
  place.reading = start_reading(layer, kernels::host_bytes(place.staging == nullptr ? *place.memory : *place.staging));
}

Result<void> LayerStore::finish(LayerBuffer& place, const std::stop_token& stop) {
  while (place.reading != nullptr) {
    const auto blocks = place.reading->next(stop);
    if (!blocks) {
      if (blocks.error().kind == ErrorKind::cancelled) return blocks.error();
      const LayerId layer = std::exchange(place.holds, nullptr)->weights.id;  // the next pass tries again
      place.reading = nullptr;
      return blocks.error().in(layer_module(layer));
    }
    if (place.staging != nullptr) {
      for (const Reading::Block& block : *blocks)
        copy(place, block.offset, kernels::host_bytes(*place.staging).subspan(block.offset, block.bytes));
    }
    if (!blocks->empty()) continue;
    context_.access.count(WeightPurpose::always_needed, place.reading->bytes());
    place.reading = nullptr;
    if (place.staging != nullptr) place.arrival = copies_->mark();
  }
  if (place.arrival != nullptr) context_.queue.wait(*place.arrival);
  return {};
}

LayerStore::LayerBuffer* LayerStore::place_of(const Streamed& layer) {
  const auto found = std::ranges::find(places_, &layer, &LayerBuffer::holds);
  return found == places_.end() ? nullptr : &*found;
}

// The next streamed layer after `index`; after the last layer comes the next pass.
LayerStore::Streamed* LayerStore::next_streamed(uint32_t index) {
  for (size_t ahead = 1; ahead <= pass_.size(); ++ahead) {
    const auto found = streamed_.find(pass_[(index + ahead) % pass_.size()]);
    if (found != streamed_.end()) return found->second.get();
  }
  return nullptr;
}

Result<const LayerWeights*> LayerStore::weights(uint32_t index, const std::stop_token& stop) {
  const auto resident = resident_.find(pass_[index]);
  if (resident != resident_.end()) return static_cast<const LayerWeights*>(resident->second.get());
  Streamed& layer = *streamed_.at(pass_[index]);
  TRY(context_.queue.finish());  // operations that use the other places
  LayerBuffer* place = place_of(layer);
  if (place == nullptr) {
    place = &places_[(current_ + 1) % places_.size()];
    // An abandoned pass may have left a read into it under way.
    if (place->reading != nullptr) TRY(finish(*place, stop));
    start(layer, *place);
  }
  TRY(finish(*place, stop));
  current_ = static_cast<size_t>(place - places_.data());
  if (places_.size() > 1) {
    Streamed* next = next_streamed(index);
    LayerBuffer& other = places_[(current_ + 1) % places_.size()];
    if (place_of(*next) == nullptr && other.reading == nullptr) start(*next, other);
  }
  return static_cast<const LayerWeights*>(&layer.weights);
}

WeightWork LayerStore::work() const {
  WeightWork work;
  for (const LayerId layer : pass_) {
    const LayerWeights* resident = at_hand(layer);
    work += resident != nullptr ? resident->work : streamed_.at(layer)->weights.work;
  }
  return work;
}

uint64_t LayerStore::memory_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, layer] : resident_)
    bytes += layer->work.bytes;
  for (const LayerBuffer& place : places_)
    bytes += place.memory->size_bytes();
  return bytes;
}

}  // namespace dspack::runtime
