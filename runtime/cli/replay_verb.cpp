#include "runtime/cli/verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "format/cli/output.h"
#include "format/file_system.h"
#include "runtime/cli/model_options.h"
#include "runtime/experts/eviction_policy.h"
#include "runtime/replay/report.h"
#include "runtime/replay/trace_page.h"

namespace dspack::runtime {
namespace {

Result<int> run_replay(const ReplayOptions& options, format::Process& process) {
  const std::stop_token stop = process.stop();
  const bool is_page = !options.html.empty();
  const bool is_text = !options.json && !is_page;
  format::FileSystem& files = format::posix_file_system();
  if (is_page && options.html != "-") TRY(format::try_output(options.html));
  TRY_ASSIGN(RouteReader reader, RouteReader::open(files, options.trace));
  TRY_ASSIGN(const Workload workload, Workload::read(std::move(reader)));
  std::vector<NamedPolicy> policies;
  for (const NamedPolicy& policy : eviction_policies()) {
    if (options.policy.empty() || policy.name == options.policy) policies.push_back(policy);
  }
  if (is_text) format::print_line(options.trace + ": " + describe(workload));
  std::vector<ReplayReport> reports;
  for (const SlotCount& count : options.slots) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the replay was interrupted"};
    reports.push_back(replay(workload, count.slots(workload.experts(), workload.expert_bytes()), policies));
    if (is_text) format::print_out(to_table(workload, reports.back()));
  }
  if (options.json) {
    format::print_json(to_json(workload, reports).dump(-1, ' ', false, format::Json::error_handler_t::replace) + "\n");
  }
  if (!is_page) return 0;
  TRY_ASSIGN(const std::string page,
             trace_page(std::filesystem::path(options.trace).filename().string(), workload, reports));
  if (options.html == "-") {
    format::print_data(page);
    return 0;
  }
  TRY(format::write_output(files, options.html, page));
  format::print_out(fmt::format("{}: {} of {}; open it in a browser\n", options.html, format::human_bytes(page.size()),
                                options.trace));
  return 0;
}

std::string policy_list() {
  std::string text;
  for (const NamedPolicy& policy : eviction_policies())
    text += fmt::format("  {:<12}{}{}\n", policy.name, policy.about, policy.name == kDefaultPolicy ? " (default)" : "");
  return text;
}

void add_replay_options(format::OptionTable& table, ReplayOptions& options) {
  table.explain("Computes what each eviction policy would have read for recorded routes.");
  table.footer(fmt::format(
      "Examples:\n"
      "  dsrun ./ds-packed -p \"Once upon a time\" --trace routes.jsonl\n"
      "  dsrun replay routes.jsonl --slots 12.5%,25%,50%\n"
      "  dsrun replay routes.jsonl --slots 5%,10%,20%,40%,80% --html routes.html\n\n"
      "Policies:\n{}  optimum     with knowledge of the future; no policy misses less\n\n"
      "Misses and bytes are of decoded tokens. \"gap closed\": the share "
      "of lru's misses above the\noptimum that a policy avoids. The format of traces is open: docs/traces.md.",
      policy_list()));
  table.add("TRACE", "", options.trace, "The recorded routes").required();
  const auto take_slots = [&options](const std::vector<std::string>& texts) -> Result<void> {
    for (const std::string& text : texts) {
      TRY_ASSIGN(const SlotCount count, SlotCount::parse(text));
      options.slots.push_back(count);
    }
    return {};
  };
  table
      .words("--slots", "N,...", take_slots,
             "Experts that memory holds: a number, a share (25%) or a size (64GB); several with commas", ',')
      .required();
  auto json = table.flag("--json", options.json, "All figures as JSON");
  table
      .add("--html", "FILE", options.html,
           "Write one self-contained page for a browser: the map of experts pass by pass, and every policy's misses "
           "over "
           "slots; \"-\" is stdout")
      .excludes(json);
  table.dev(
      "policy", "NAME", options.policy, [](std::string_view name) { return parse_policy(name, eviction_policies()); },
      "only this policy, beside the optimum");
}

}  // namespace

Result<SlotCount> SlotCount::parse(std::string_view text) {
  if (const auto experts = parse_expert_amount(text)) return SlotCount{.amount = *experts};
  const auto bytes = parse_memory_amount(text);
  if (bytes && !bytes->percent && bytes->number > 0) return SlotCount{.amount = *bytes, .is_memory = true};
  return Error{ErrorKind::invalid,
               fmt::format("{} is no number of slots; write 1856, 12.5% of the experts, or 64GB", text)};
}

uint64_t SlotCount::slots(uint64_t experts, uint64_t expert_bytes) const {
  const uint64_t count = is_memory ? amount.number / expert_bytes : amount.of(experts);
  return std::max<uint64_t>(1, count);
}

format::Verb replay_verb() {
  return format::make_verb("replay", "Judge eviction policies on recorded routes", add_replay_options, run_replay);
}

}  // namespace dspack::runtime
