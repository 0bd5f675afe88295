// dsrun replay: recorded routes through every eviction policy.
#include "format/cli/output.h"
#include "format/file_system.h"
#include "runtime/cli/command_support.h"
#include "runtime/cli/commands.h"
#include "runtime/replay/report.h"

namespace dspack::runtime {

Result<int> run_replay(const ReplayOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(RouteReader reader, RouteReader::open(format::posix_file_system(), options.trace));
  TRY_ASSIGN(const Workload workload, Workload::read(std::move(reader)));
  std::vector<NamedPolicy> policies;
  for (const NamedPolicy& policy : replay_policies()) {
    if (options.policy.empty() || policy.name == options.policy) policies.push_back(policy);
  }
  if (!options.json) format::print_line(options.trace + ": " + describe(workload));
  std::vector<ReplayReport> reports;
  for (const SlotCount& count : options.slots) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the replay was interrupted"};
    reports.push_back(
        replay(workload, count.slots(workload.experts(), workload.expert_bytes()), policies, options.seed));
    if (!options.json) format::print_out(to_table(workload, reports.back()));
  }
  if (options.json) format::print_json(to_json(workload, reports));
  return 0;
}

}  // namespace dspack::runtime
