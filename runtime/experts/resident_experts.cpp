#include "runtime/experts/resident_experts.h"

#include <fmt/format.h>

#include <deque>

#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/experts/streamed_store.h"

namespace dspack::runtime {

namespace {

// Copies under way while the next expert is awaited: one that runs, and one behind it.
constexpr size_t kCopiesUnderWay = 2;

Result<std::unique_ptr<StreamedStore>> make_reader(kernels::Device& host, kernels::Device& device,
                                                   WeightStorage& storage, const DeviceExperts& wanted) {
  StreamedStoreOptions store;
  store.memory = [&device](uint64_t bytes) { return device.allocate_host(bytes); };
  store.shape = wanted.shape;
  store.layers = wanted.layers;
  store.slots = kReaderSlots;
  store.policy = [](uint64_t, uint64_t) { return std::make_unique<LruPolicy>(); };
  return StreamedStore::make(host, storage, store);
}

}  // namespace

Result<uint64_t> ResidentExperts::bytes_for(const format::Checkpoint& checkpoint, const DeviceExperts& wanted) {
  TRY_ASSIGN(const auto layouts, lay_out_experts(checkpoint, wanted, ExpertPresence::all));
  uint64_t bytes = 0;
  for (const auto& [id, layout] : layouts)
    bytes += layout.expert_bytes * wanted.experts;
  return bytes;
}

Result<std::unique_ptr<ResidentExperts>> ResidentExperts::load(kernels::Device& device, kernels::Queue& queue,
                                                               WeightStorage& storage, const DeviceExperts& wanted,
                                                               format::Progress* progress,
                                                               const std::stop_token& stop) {
  std::unique_ptr<ResidentExperts> experts(new ResidentExperts);
  if (wanted.layers.empty()) return experts;
  TRY_ASSIGN(const auto layouts, lay_out_experts(storage.checkpoint(), wanted, ExpertPresence::all));
  TRY(experts->allocate(device, layouts, wanted.experts));
  TRY_ASSIGN(const auto host, kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
  TRY_ASSIGN(const auto reader, make_reader(*host, device, storage, wanted));
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

Result<void> ResidentExperts::allocate(kernels::Device& device, const std::map<LayerId, ExpertLayout>& layouts,
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

// Experts are uploaded in the order of their arrival, while the next ones are read.
Result<void> ResidentExperts::fill(Layer& layer, LayerId id, ExpertStore& reader, kernels::Queue& queue,
                                   format::Progress& progress, const std::stop_token& stop) {
  std::vector<ExpertDemand> demands;
  for (uint32_t expert = 0; expert < layer.experts.size(); ++expert)
    demands.push_back({.expert = ExpertId(expert), .rows = 1, .first_row = 0, .last_row = 0});
  TRY_ASSIGN(const auto request, reader.request(id, std::move(demands)));
  struct Copy {
    ExpertLease lease;
    std::shared_ptr<kernels::Event> end;
  };
  std::deque<Copy> under_way;  // goes before the request, and what it borrows after the copies have run
  const auto finish_oldest = [&] {
    under_way.front().end->wait();
    under_way.pop_front();  // the lease ends here
    progress.advanced(layer.layout.expert_bytes);
  };
  Result<void> loaded;
  for (size_t taken = 0; taken < layer.experts.size() && loaded; ++taken) {
    if (stop.stop_requested()) {
      loaded = Error{ErrorKind::cancelled, "loading was interrupted"};
      break;
    }
    while (under_way.size() >= kCopiesUnderWay)
      finish_oldest();
    auto lease = request->next(stop);
    if (!lease) {
      loaded = lease.error();
      break;
    }
    upload_expert(queue, layer.layout, lease->weights(), layer.experts[lease->index()]);
    under_way.push_back({.lease = std::move(*lease), .end = queue.mark()});
  }
  while (!under_way.empty())
    finish_oldest();
  if (loaded) return queue.finish();
  return loaded;
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
