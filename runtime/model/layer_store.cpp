#include "runtime/model/layer_store.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "format/base/result.h"
#include "kernels/cpu/cpu_device.h"
#include "runtime/config/config.h"

namespace dspack::runtime {

// One layer on its way: pieces that are still to come, and the first error.
struct LayerStore::Reading {
  std::mutex mutex;
  std::condition_variable_any changed;
  size_t pieces_left = 0;  // guarded by mutex, as the error
  std::optional<Error> error;
  uint64_t bytes = 0;  // in all; fixed before the first piece begins

  void finish_piece(const Result<void>& outcome) {
    const std::lock_guard lock(mutex);
    if (!outcome && !error) error = outcome.error();
    if (--pieces_left == 0) changed.notify_all();
  }
};

namespace {

// A tensor that stays as it is stored goes to its place in blocks.
Result<void> read_block(Tier& tier, const format::TensorEntry& tensor, uint64_t offset, std::span<std::byte> into,
                        const std::stop_token& stop) {
  auto read = tier.read(tensor.file, tensor.range.begin + offset, into, stop);
  return read ? read : read.error().in(tensor.name);
}

// One that is made or checked is mostly small: a norm, scales.
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
LayerStore::~LayerStore() = default;

Result<std::unique_ptr<LayerStore>> LayerStore::load(const LoadContext& context, const ModelConfig& config,
                                                     const AttentionOptions& attention, const format::LayerMap& pass,
                                                     const LayerStreaming& streaming, const std::stop_token& stop) {
  std::unique_ptr<LayerStore> store(new LayerStore(context, pass));
  for (const LayerId layer : pass) {
    DSPACK_CHECK(layer.value < config.layers, "the layer map names a layer that the model lacks");
    if (streaming.layers.contains(layer)) {
      auto& streamed = store->streamed_[layer];
      if (streamed != nullptr) continue;  // a repetition
      streamed = std::make_unique<Streamed>();
      TRY_ASSIGN(WeightGroup group, find_layer(context, config, attention, layer, streamed->weights));
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
  if (!store->streamed_.empty()) TRY(store->make_places(streaming.buffers));
  return store;
}

Result<void> LayerStore::make_places(uint32_t buffers) {
  DSPACK_CHECK(buffers > 0, "layers that stream need a place");
  uint64_t largest = 0;
  for (const auto& [id, layer] : streamed_)
    largest = std::max(largest, layer->group->size_bytes());
  for (size_t i = 0; i < std::min<size_t>(buffers, streamed_.size()); ++i) {
    auto memory = context_.device.allocate(largest);
    if (!memory) return memory.error().in("memory for layers that are read in every pass");
    places_.push_back({.memory = std::move(*memory), .staging = {}, .holds = nullptr, .reading = nullptr});
    if (!context_.device.is_host()) places_.back().staging.resize(largest);
  }
  transfers_ = std::make_unique<TransferPool>(context_.access.weights().depth());
  return {};
}

void LayerStore::start_reading(Streamed& layer, Place& place) {
  Tier& tier = context_.access.weights();
  const std::span<std::byte> memory = place.staging.empty() ? kernels::host_bytes(*place.memory) : place.staging;
  const auto reading = std::make_shared<Reading>();
  std::vector<std::function<Result<void>(const std::stop_token&)>> pieces;
  for (const WeightGroup::Part& part : layer.group->parts()) {
    const format::StoredPlane& plane = part.plane;
    const format::TensorEntry& tensor = plane.elements();
    const uint64_t total = tensor.range.size();
    for (const format::TensorEntry* each : plane.tensors)
      reading->bytes += each->range.size();
    if (!plane.is_as_stored()) {
      const auto into = memory.subspan(part.offset, plane.bytes);
      pieces.emplace_back([&tier, &plane, into](const auto& stop) { return read_whole(tier, plane, into, stop); });
      continue;
    }
    const uint64_t block = tier.block_bytes(tensor.file);
    for (uint64_t done = 0; done < total; done += block) {
      const auto into = memory.subspan(part.offset + done, std::min(block, total - done));
      pieces.emplace_back(
          [&tier, &tensor, done, into](const auto& stop) { return read_block(tier, tensor, done, into, stop); });
    }
  }
  layer.group->bind(*place.memory);
  place.holds = &layer;
  place.reading = reading;
  reading->pieces_left = pieces.size();
  for (auto& piece : pieces) {
    transfers_->submit(Urgency::demand, 0, [reading, piece = std::move(piece)](const std::stop_token& stop) {
      reading->finish_piece(guarded([&] { return piece(stop); }));
    });
  }
}

Result<void> LayerStore::finish_reading(Place& place, const std::stop_token& stop) {
  if (place.reading == nullptr) return {};
  Reading& reading = *place.reading;
  std::unique_lock lock(reading.mutex);
  if (!reading.changed.wait(lock, stop, [&] { return reading.pieces_left == 0; })) {
    return Error{ErrorKind::cancelled, "the run was interrupted"};
  }
  const std::optional<Error> error = reading.error;
  context_.access.count(WeightPurpose::always_needed, reading.bytes);
  lock.unlock();
  const LayerId layer = place.holds->weights.id;
  place.reading = nullptr;
  if (!error) {
    if (place.staging.empty()) return {};
    context_.queue.upload({.buffer = place.memory.get()},
                          std::span(place.staging).first(place.holds->group->size_bytes()));
    return context_.queue.finish();  // the staging memory is used again
  }
  place.holds = nullptr;  // the next pass may have more luck
  return error->in(names::layer(layer));
}

LayerStore::Place* LayerStore::place_of(const Streamed& layer) {
  const auto found = std::ranges::find(places_, &layer, &Place::holds);
  return found == places_.end() ? nullptr : &*found;
}

// The first one behind `index` that streams; behind the last layer comes the next pass.
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
  TRY(context_.queue.finish());  // what used the other places
  Place* place = place_of(layer);
  if (place == nullptr) {
    place = &places_[(current_ + 1) % places_.size()];
    // It may be on its way for a pass that was given up.
    if (place->reading != nullptr) TRY(finish_reading(*place, stop));
    start_reading(layer, *place);
  }
  TRY(finish_reading(*place, stop));
  current_ = static_cast<size_t>(place - places_.data());
  if (places_.size() > 1) {
    Streamed* next = next_streamed(index);
    Place& other = places_[(current_ + 1) % places_.size()];
    if (place_of(*next) == nullptr && other.reading == nullptr) start_reading(*next, other);
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
  for (const Place& place : places_)
    bytes += place.memory->size_bytes();
  return bytes;
}

}  // namespace dspack::runtime
