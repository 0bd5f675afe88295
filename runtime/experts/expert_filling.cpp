#include "runtime/experts/expert_filling.h"

#include <algorithm>

#include "format/base/check.h"

namespace dspack::runtime {

Result<void> fill_devices(ExpertStore& store, std::span<const std::unique_ptr<ExpertBackend>> backends,
                          const DeviceExperts& experts, format::Progress* progress, const std::stop_token& stop) {
  format::SilentProgress silent;
  format::Progress& told = progress == nullptr ? static_cast<format::Progress&>(silent) : *progress;
  const auto release_oldest = [&] {
    return std::ranges::any_of(backends, [](const auto& backend) { return backend->release_oldest(); });
  };
  const ExpertPass pass{.phase = Phase::prefill, .rows = 1, .draft_rows = 0};
  store.begin_pass(pass);
  for (const auto& backend : backends)
    backend->begin_pass(pass);
  told.started({.what = "loading experts",
                .total_bytes = 0,
                .total_items = experts.layers.size() * uint64_t{experts.experts},
                .item = "experts"});
  Result<void> filled;
  for (auto layer = experts.layers.begin(); layer != experts.layers.end() && filled; ++layer) {
    std::vector<ExpertDemand> demands;
    for (uint32_t expert = 0; expert < experts.experts; ++expert)
      demands.push_back({.expert = ExpertId(expert)});
    auto made = store.request(*layer, demands);
    if (!made) filled = made.error();
    if (!made) break;
    ExpertRequest& request = **made;
    for (size_t taken = 0; taken < demands.size(); ++taken) {
      if (stop.stop_requested()) {  // experts may be ready before anybody would wait for them
        filled = Error{ErrorKind::cancelled, "loading was interrupted"};
        break;
      }
      // Slots that copies hold are what reading waits for.
      while (!request.is_ready() && request.is_starved() && release_oldest()) {
      }
      auto lease = request.next(stop);
      if (!lease) {
        filled = lease.error();
        break;
      }
      const ExpertDemand& demand = demands[lease->index()];
      const bool is_kept =
          std::ranges::any_of(backends, [&](const auto& backend) { return backend->keep(*layer, demand, *lease); });
      DSPACK_CHECK(is_kept, "an expert that belongs nowhere");
      told.item_done();
    }
    while (release_oldest()) {
    }  // before the request goes, from whose slots copies read
  }
  told.finished();
  return filled;
}

}  // namespace dspack::runtime
