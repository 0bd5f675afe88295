#include "runtime/experts/expert_filling.h"

#include <algorithm>

#include "format/base/check.h"

namespace dspack::runtime {

namespace {

constexpr ExpertPass kFilling{.phase = Phase::prefill, .rows = 1, .draft_rows = 0};

Result<void> read_layer(ExpertRequest& request, LayerId layer, std::span<const ExpertDemand> demands,
                        const ExpertSink& sink, format::Progress& progress, const std::stop_token& stop) {
  for (size_t taken = 0; taken < demands.size(); ++taken) {
    // `next` checks `stop` only if it has to wait.
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "loading was interrupted"};
    // Reading waits for slots that copies hold.
    while (!request.is_ready() && request.is_starved() && sink.release_oldest()) {
    }
    TRY_ASSIGN(ExpertLease lease, request.next(stop));
    const ExpertDemand& demand = demands[lease.index()];
    sink.keep(layer, demand, std::move(lease));
    progress.item_done();
  }
  return {};
}

}  // namespace

Result<void> read_all_experts(ExpertStore& store, const DeviceExperts& experts, const ExpertSink& sink,
                              format::Progress& progress, const std::stop_token& stop) {
  store.begin_pass(kFilling);
  std::vector<ExpertDemand> demands;
  for (uint32_t expert = 0; expert < experts.experts; ++expert)
    demands.push_back({.expert = ExpertId(expert)});
  for (const LayerId layer : experts.layers) {
    TRY_ASSIGN(const auto request, store.request(layer, demands));
    Result<void> read = read_layer(*request, layer, demands, sink, progress, stop);
    while (sink.release_oldest()) {
    }  // before the request ends, from whose slots copies read
    if (!read) return read;
  }
  return {};
}

Result<void> fill_devices(ExpertStore& store, std::span<const std::unique_ptr<ExpertBackend>> backends,
                          const DeviceExperts& experts, format::Progress* progress, const std::stop_token& stop) {
  format::SilentProgress silent;
  format::Progress& told = progress == nullptr ? static_cast<format::Progress&>(silent) : *progress;
  for (const auto& backend : backends)
    backend->begin_pass(kFilling);
  const ExpertSink sink{
      .keep =
          [&](LayerId layer, const ExpertDemand& demand, ExpertLease lease) {
            const bool is_kept =
                std::ranges::any_of(backends, [&](const auto& backend) { return backend->keep(layer, demand, lease); });
            DSPACK_CHECK(is_kept, "an expert that belongs nowhere");
          },
      .release_oldest =
          [&] { return std::ranges::any_of(backends, [](const auto& backend) { return backend->release_oldest(); }); }};
  told.started({.what = "loading experts",
                .total_bytes = 0,
                .total_items = experts.layers.size() * uint64_t{experts.experts},
                .item = "experts"});
  Result<void> filled = read_all_experts(store, experts, sink, told, stop);
  told.finished();
  return filled;
}

}  // namespace dspack::runtime
