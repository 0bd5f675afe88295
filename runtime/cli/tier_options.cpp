#include "runtime/cli/tier_options.h"

#include <map>

#include "runtime/cli/memory_options.h"

namespace dspack::runtime {

namespace {

// "0" is a number here: experts only pass through then.
Result<Amount> parse_vram_experts(std::string_view text) {
  if (text == "0" || text == "0%") return Amount{};
  return parse_expert_amount(text);
}

}  // namespace

void add_tier_options(CLI::App& app, DeviceOptions& device) {
  static const std::map<std::string, MissMode> kModes = {
      {"auto", MissMode::automatic}, {"move", MissMode::move}, {"compute", MissMode::compute}};
  add_amount(app, "--vram-experts", parse_vram_experts, device.vram_experts,
             "Routed experts that the GPU's memory keeps: a number, 25% of all (default: as many as fit; of a distant "
             "model those that routers pick)")
      ->type_name("N|%");
  app.add_option_function<std::string>(
         "--miss", [&device](const std::string& name) { device.miss.mode = kModes.at(name); },
         "An expert that the GPU lacks is copied there (move), or computed by the CPU where it lies (compute); auto "
         "(default): what is done first, by this run's own rates")
      ->check(CLI::IsMember({"auto", "move", "compute"}).description(""))
      ->type_name("NAME");
  app.add_flag("--deterministic", device.miss.is_deterministic,
               "The same text in every run: --miss auto means move, whatever is measured");
}

std::string tier_contradiction_of(const DeviceOptions& device) {
  if (device.kind != DeviceKind::cpu) return {};
  if (device.vram_experts) return "--vram-experts is for a GPU; leave it out, or use --device cuda";
  if (device.miss.mode != MissMode::automatic) return "--miss is for a GPU; leave it out, or use --device cuda";
  return {};
}

}  // namespace dspack::runtime
