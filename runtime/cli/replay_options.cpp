#include "runtime/cli/replay_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/cli/option_support.h"
#include "runtime/replay/policies/replay_policies.h"

namespace dspack::runtime {

namespace {

std::vector<std::string> names_of(std::span<const NamedPolicy> policies) {
  std::vector<std::string> names;
  for (const NamedPolicy& policy : policies)
    names.emplace_back(policy.name);
  return names;
}

std::string policy_list() {
  std::string text;
  for (const NamedPolicy& policy : replay_policies())
    text += fmt::format("  {:<12}{}{}\n", policy.name, policy.about, policy.name == kDefaultPolicy ? " (default)" : "");
  return text;
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

void add_policy_options(CLI::App& app, LoadOptions& load) {
  app.add_option("--policy", load.policy,
                 fmt::format("Which expert leaves when slots are short (default: {}): {}", kDefaultPolicy,
                             fmt::join(names_of(eviction_policies()), ", ")))
      ->check(CLI::IsMember(names_of(eviction_policies())).description(""))
      ->type_name("NAME");
  app.add_option("--trace", load.route_trace, "Record which experts the router picks, for dsrun replay")
      ->type_name("FILE.jsonl");
}

CommandLine parse_replay(std::vector<std::string> arguments) {
  ReplayOptions options;
  auto app = make_app("dsrun replay", "Tells what each eviction policy would have read for recorded routes.");
  app->footer(
      fmt::format("Examples:\n"
                  "  dsrun ./ds-packed -p \"Once upon a time\" --trace routes.jsonl\n"
                  "  dsrun replay routes.jsonl --slots 12.5%,25%,50%\n\n"
                  "Policies:\n{}  optimum     by one who knows the future; no policy misses less\n\n"
                  "Misses and bytes are of decoded tokens. \"gap closed\": of the misses that lru has more than the "
                  "optimum,\nthe share that a policy avoids. The format of traces is open: docs/traces.md.",
                  policy_list()));
  app->add_option("trace", options.trace, "The recorded routes")->required()->type_name("TRACE");
  std::vector<std::string> slots;
  app->add_option("--slots", slots,
                  "Experts that memory holds: a number, a share (25%) or a size (64GB); several with "
                  "commas")
      ->required()
      ->delimiter(',')
      ->type_name("N,...");
  app->add_option("--policy", options.policy, "Only this policy, beside the optimum")
      ->check(CLI::IsMember(names_of(replay_policies())).description(""))
      ->type_name("NAME");
  app->add_option("--seed", options.seed, "For policies that draw lots (default: 1)")->type_name("N");
  app->add_flag("--json", options.json, "All figures as JSON");
  if (auto exit = parse(*app, std::move(arguments))) return *exit;
  for (const std::string& text : slots) {
    const auto count = SlotCount::parse(text);
    if (!count) return Exit{.status = 2, .text = fmt::format("dsrun: {}\n", count.error().message)};
    options.slots.push_back(*count);
  }
  return options;
}

}  // namespace dspack::runtime
