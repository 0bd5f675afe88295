#include "runtime/experts/resident_experts.h"

#include <fmt/format.h>

#include "format/base/checked.h"
#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/experts/streamed_store.h"

namespace dspack::runtime {

namespace {

// Where every matrix begins: what the widest loads of any device want, several times over.
constexpr uint64_t kAlignment = 256;
constexpr std::array<const char*, 3> kProjections = {"gate_proj", "up_proj", "down_proj"};

uint64_t data_bytes_of(const kernels::Weight& form) {
  return uint64_t{form.out} * form.in * (bits_of(form.dtype) / 8);
}

uint64_t scale_bytes_of(const kernels::Weight& form) {
  return ceil_div(form.out, form.block_out) * ceil_div(form.in, form.block_in) * sizeof(float);
}

bool is_stored_alike(const SlotPlan::Matrix& a, const SlotPlan::Matrix& b) {
  return a.form.dtype == b.form.dtype && a.scale.has_value() == b.scale.has_value() &&
         a.form.block_out == b.form.block_out && a.form.block_in == b.form.block_in;
}

Error stored_otherwise(ExpertKey key, const char* projection) {
  return {ErrorKind::unsupported,
          fmt::format("layer {}, expert {}: its {} is stored in another way than that of the layer's first expert; "
                      "experts that stay in device memory must be stored alike; run on the CPU (--device cpu)",
                      key.layer.value, key.expert.value, projection)};
}

Result<std::unique_ptr<StreamedStore>> make_reader(kernels::Device& host, WeightStorage& storage,
                                                   const ResidentOptions& options) {
  StreamedStoreOptions store;
  store.shape = options.shape;
  store.layers = options.layers;
  store.slots = kReaderSlots;
  store.policy = [](uint64_t, uint64_t) { return std::make_unique<LruPolicy>(); };
  return StreamedStore::make(host, storage, store);
}

}  // namespace

ResidentExperts::Layout ResidentExperts::layout_of(const SlotPlan& plan) {
  Layout layout;
  uint64_t end = 0;
  const auto place = [&](uint64_t bytes) {
    const uint64_t at = end;
    end = round_up(end + bytes, kAlignment);
    return at;
  };
  for (size_t i = 0; i < layout.places.size(); ++i) {
    Place& to = layout.places[i];
    to.matrix.form = plan.matrices[i].form;
    to.data_bytes = data_bytes_of(to.matrix.form);
    to.matrix.data = place(to.data_bytes);
    if (!plan.matrices[i].scale) continue;
    to.scale_bytes = scale_bytes_of(to.matrix.form);
    to.matrix.scale = place(to.scale_bytes);
  }
  layout.expert_bytes = end;
  return layout;
}

// Looks at every expert, so that one that is missing is told of before tens of gigabytes are read.
Result<std::map<LayerId, ResidentExperts::Layout>> ResidentExperts::lay_out(const format::Checkpoint& checkpoint,
                                                                            const ResidentOptions& options) {
  std::map<LayerId, Layout> layouts;
  for (const LayerId layer : options.layers) {
    for (uint32_t expert = 0; expert < options.experts; ++expert) {
      const ExpertKey key{.layer = layer, .expert = ExpertId(expert)};
      const auto plan = plan_slot(checkpoint, key, options.shape);
      if (!plan) return explained(plan.error(), key);
      const auto [place, is_first] = layouts.try_emplace(layer);
      if (is_first) place->second = layout_of(*plan);
      for (size_t i = 0; i < kProjections.size(); ++i) {
        if (!is_stored_alike(place->second.places[i].matrix, plan->matrices[i])) {
          return stored_otherwise(key, kProjections[i]);
        }
      }
    }
  }
  return layouts;
}

Result<uint64_t> ResidentExperts::bytes_for(const format::Checkpoint& checkpoint, const ResidentOptions& options) {
  TRY_ASSIGN(const auto layouts, lay_out(checkpoint, options));
  uint64_t bytes = 0;
  for (const auto& [id, layout] : layouts)
    bytes += layout.expert_bytes * options.experts;
  return bytes;
}

Result<std::unique_ptr<ResidentExperts>> ResidentExperts::load(kernels::Device& device, kernels::Queue& queue,
                                                               WeightStorage& storage, const ResidentOptions& options,
                                                               format::Progress* progress,
                                                               const std::stop_token& stop) {
  std::unique_ptr<ResidentExperts> experts(new ResidentExperts);
  if (options.layers.empty()) return experts;
  TRY_ASSIGN(const auto layouts, lay_out(storage.checkpoint(), options));
  TRY(experts->allocate(device, layouts, options.experts));
  TRY_ASSIGN(const auto host, kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
  TRY_ASSIGN(const auto reader, make_reader(*host, storage, options));
  reader->begin_pass({.phase = Phase::prefill, .rows = 1, .draft_rows = 0});
  format::SilentProgress silent;
  format::Progress& told = progress == nullptr ? static_cast<format::Progress&>(silent) : *progress;
  told.started("loading experts", experts->size_bytes(), 0);
  Result<void> filled;
  for (auto& [id, layer] : experts->layers_) {
    filled = experts->fill(layer, id, *reader, queue, told, stop);
    if (!filled) break;
  }
  told.finished();
  if (!filled) return filled.error();
  experts->keep_stats(reader->stats());
  return experts;
}

Result<void> ResidentExperts::allocate(kernels::Device& device, const std::map<LayerId, Layout>& layouts,
                                       uint32_t experts) {
  for (const auto& [id, layout] : layouts) {
    Layer& layer = layers_[id];
    layer.layout = layout;
    auto memory = device.allocate(layout.expert_bytes * experts);
    if (!memory) return memory.error().in(fmt::format("memory for the {} experts of layer {}", experts, id.value));
    layer.memory = std::move(*memory);
    for (uint64_t expert = 0; expert < experts; ++expert)
      layer.experts.push_back(weights_at(layout, {layer.memory.get(), expert * layout.expert_bytes}));
    std::vector<kernels::ExpertMatrices> matrices;
    for (const ExpertWeights& expert : layer.experts) {
      matrices.push_back({.gate = expert.gate.weight(), .up = expert.up.weight(), .down = expert.down.weight()});
    }
    auto table = device.make_expert_table(matrices);
    if (!table) return table.error().in(fmt::format("layer {}", id.value));
    layer.table = std::move(*table);
  }
  return {};
}

ExpertWeights ResidentExperts::weights_at(const Layout& layout, kernels::Slice begin) {
  const auto linear = [&](const Place& place) {
    kernels::Weight weight = place.matrix.form;
    weight.data = begin.at(place.matrix.data);
    if (place.matrix.scale) weight.scale = begin.at(*place.matrix.scale);
    return Linear(weight);
  };
  return {.gate = linear(layout.places[0]), .up = linear(layout.places[1]), .down = linear(layout.places[2])};
}

// Experts are uploaded in the order of their arrival, while the next ones are read.
Result<void> ResidentExperts::fill(Layer& layer, LayerId id, ExpertStore& reader, kernels::Queue& queue,
                                   format::Progress& progress, const std::stop_token& stop) {
  std::vector<ExpertDemand> demands;
  for (uint32_t expert = 0; expert < layer.experts.size(); ++expert)
    demands.push_back({.expert = ExpertId(expert), .rows = 1, .first_row = 0, .last_row = 0});
  TRY_ASSIGN(const auto request, reader.request(id, std::move(demands)));
  const auto upload = [&](kernels::Slice to, kernels::Slice from, uint64_t bytes) {
    queue.upload(to, kernels::host_bytes(*from.buffer).subspan(from.offset_bytes, bytes));
  };
  for (size_t taken = 0; taken < layer.experts.size(); ++taken) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "loading was interrupted"};
    TRY_ASSIGN(const ExpertLease lease, request->next(stop));
    const ExpertWeights& to = layer.experts[lease.index()];
    const std::array<const Linear*, 3> from = {&lease.weights().gate, &lease.weights().up, &lease.weights().down};
    const std::array<const Linear*, 3> into = {&to.gate, &to.up, &to.down};
    for (size_t i = 0; i < from.size(); ++i) {
      const Place& place = layer.layout.places[i];
      upload(into[i]->weight().data, from[i]->weight().data, place.data_bytes);
      if (place.matrix.scale) upload(into[i]->weight().scale, from[i]->weight().scale, place.scale_bytes);
    }
    queue.synchronize();  // the lease ends here
    progress.advanced(layer.layout.expert_bytes);
  }
  return {};
}

void ResidentExperts::keep_stats(const ExpertStoreStats& reading) {
  stats_.policy = "resident";
  stats_.prefetch = to_string(PrefetchMode::off);
  stats_.read_experts = reading.read_experts;
  stats_.opened_files = reading.opened_files;
  stats_.loaded_bytes = reading.bytes_read();
  for (const auto& [id, layer] : layers_)
    stats_.resident_experts += layer.experts.size();
  stats_.slots = stats_.resident_experts;
  stats_.resident_bytes = size_bytes();
  stats_.slot_bytes = size_bytes();
}

const ResidentExperts::Layer& ResidentExperts::at(LayerId layer) const {
  const auto found = layers_.find(layer);
  DSPACK_CHECK(found != layers_.end(), fmt::format("the experts of layer {} were not loaded", layer.value));
  return found->second;
}

const ExpertWeights& ResidentExperts::weights(LayerId layer, ExpertId expert) const {
  return at(layer).experts.at(expert.value);
}

uint64_t ResidentExperts::size_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, layer] : layers_)
    bytes += layer.memory->size_bytes();
  return bytes;
}

}  // namespace dspack::runtime
