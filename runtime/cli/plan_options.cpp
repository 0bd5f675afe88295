#include "runtime/cli/plan_options.h"

#include "runtime/cli/mtp_options.h"
#include "runtime/cli/option_support.h"

namespace dspack::runtime {

CommandLine parse_plan(std::vector<std::string> arguments) {
  PlanOptions options;
  auto app =
      make_app("dsrun plan",
               "Says before anything is loaded whether a model fits, where its parts will lie, and how fast it is "
               "expected to run here. Memory, disk and link are measured for some two seconds.");
  app->footer(
      "Example:\n  dsrun plan ./ds-packed --ram 24GB --ctx 8192 --prompt-tokens 500\n\nStatus: 0 it fits, 1 it "
      "does not (or something failed), 2 wrong usage.");
  add_folder(*app, options.folder);
  app->add_option("--prompt-tokens", options.prompt_tokens, "Length of the prompt to expect (default: 128)")
      ->check(between(1U, 1U << 26U))
      ->type_name("N");
  app->add_option("--hit-rate", options.hit_rate,
                  "Share of a token's experts that memory holds (of a GPU that holds some: its memory), as --stats or "
                  "dsrun replay tell it (default: two assumptions)")
      ->check(between(0.0, 100.0))
      ->type_name("%");
  app->add_flag("--json", options.json, "For machines");
  MtpFlags mtp;
  add_mtp_options(*app, mtp);
  add_load_options(*app, options.load);
  if (auto exit = parse(*app, std::move(arguments))) return *exit;
  options.load.speculation = speculation_options(mtp);
  return options;
}

}  // namespace dspack::runtime
