// reshard: repacks checkpoints. This file knows the command line and nothing else.
#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include "dspack_version.h"
#include "format/base/foreign_text.h"
#include "format/base/guarded.h"
#include "format/cli/output.h"
#include "format/cli/process.h"
#include "format/cli/terminal_progress.h"
#include "reshard/cli/commands.h"
#include "reshard/cli/inspect_command.h"
#include "reshard/cli/link_command.h"
#include "reshard/cli/network_options.h"
#include "reshard/cli/provenance_options.h"
#include "reshard/cli/publish_options.h"
#include "reshard/cli/recipe_options.h"
#include "reshard/run/part.h"

namespace {

using dspack::reshard::Context;

constexpr char kAbout[] =
    "Repacks a DeepSeek-type checkpoint, into one safetensors file a layer and routed expert, say, in one streaming "
    "pass.\n"
    "\n"
    "SOURCE is a local folder, an http(s):// folder, or a repository on the Hugging Face Hub: org/name[@revision] or\n"
    "hf://org/name[@revision] or its address in a browser, of which one commit is taken, from beginning to end.\n"
    "A run that was killed or lost its connection goes on when the same command is given again.";

constexpr char kExamples[] =
    "Examples:\n"
    "  reshard --by expert --out ./ds-packed                         deepseek-ai/DeepSeek-V3 from the Hub\n"
    "  reshard http://10.0.0.5/DeepSeek-V3/ --by expert --out ./ds-packed --jobs 8\n"
    "  reshard ./DeepSeek-V3 --by expert --out ./ds-packed --dry-run  what would be read and written\n"
    "  reshard ./DeepSeek-V3 --by layer --out ./ds-packed             one file for all routed experts of a layer\n"
    "  reshard --by layer --include layers=3-5 --out ./part           of three layers what they hold, and no more is "
    "read\n"
    "  reshard --by expert --out ./ds-packed --part 2/4               a quarter of the work, on one of four machines\n"
    "  reshard seal ./ds-packed                                       joins the parts when all are done\n"
    "  reshard inspect ./ds-packed                                    totals by role and layer\n"
    "  reshard inspect ./DeepSeek-V3 --html map.html                  a page that shows where every expert lies\n"
    "  reshard verify ./ds-packed --source ./DeepSeek-V3              every digest, then every byte\n"
    "  reshard verify ./ds-packed --upstream                          that the bytes are those which the Hub declares\n"
    "  reshard repair ./ds-packed                                     what is lost or damaged there is fetched again\n"
    "  reshard unpack ./ds-packed --exact --out ./DeepSeek-V3         the original shards again, byte for byte\n"
    "  reshard link ./ds-packed --out ./ds-flat                       a folder that vLLM and SGLang open\n"
    "  reshard seal ~/.cache/dspack/NAME                              what dsrun has fetched becomes a packed "
    "repository\n"
    "  reshard diff ./ds-packed org/other-model                       tensor by tensor\n"
    "  reshard publish ./ds-packed --repo ORG/NAME                    to the Hub; --dry-run says what that means\n";

constexpr char kExitStatus[] = "Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.";

/// The exit status.
int run(int argc, char** argv) {
  CLI::App app{kAbout, "reshard"};
  app.footer(fmt::format("{}\n{}\n{}", kExamples, dspack::format::kEnvironmentHelp, kExitStatus));
  app.set_version_flag("--version", fmt::format("reshard (dspack) {}", dspack::kVersion));

  dspack::reshard::NetworkFlags network;  // of whichever verb is parsed
  dspack::reshard::RepackFlags repack;
  app.add_option("SOURCE", repack.source,
                 "What to repack; a local folder's files must lie in it, not behind links that lead out of it")
      ->capture_default_str();
  dspack::reshard::add_recipe_options(app, repack);
  auto* out = app.add_option("--out", repack.out, "Folder for the packed repository");
  app.add_option(
         "--sha256", repack.checksum_list,
         "Refuse source files that are not those of this list, which sha256sum wrote: \"hex  path\". What the Hub, a "
         "SHA256SUMS beside the source or its server's headers declare is checked without asking")
      ->type_name("FILE");
  app.add_option("--part", repack.part,
                 "Do one of N parts, on this machine or another: a part reads source shards of its own. When all are "
                 "done, reshard seal joins them")
      ->type_name("I/N")
      ->check([](const std::string& text) {
        const auto part = dspack::reshard::parse_part(text);
        return part ? std::string() : part.error().message;
      });
  dspack::reshard::add_jobs(app, repack.jobs,
                            "Source shards read at a time; bounds memory and connections. Over a network a run begins "
                            "with 4 connections and takes more as long as they bring more, ranges of one shard where "
                            "shards are few")
      ->default_str("4 of a folder, 16 over a network");
  dspack::reshard::add_network_options(app, network);
  app.add_flag("--dry-run", repack.dry_run, "Print what would be read and written, and stop");

  dspack::reshard::InspectFlags inspect;
  CLI::App* inspect_verb = declare_inspect(app, inspect, network);
  dspack::reshard::VerifyFlags verify;
  CLI::App* verify_verb = declare_verify(app, verify, network);
  dspack::reshard::RepairFlags repair;
  CLI::App* repair_verb = declare_repair(app, repair, network);
  dspack::reshard::UnpackFlags unpack;
  CLI::App* unpack_verb = declare_unpack(app, unpack, network);
  dspack::reshard::LinkFlags link;
  CLI::App* link_verb = declare_link(app, link);
  dspack::reshard::SealFlags seal;
  CLI::App* seal_verb = declare_seal(app, seal, network);
  dspack::reshard::DiffFlags diff;
  CLI::App* diff_verb = declare_diff(app, diff, network);
  dspack::reshard::PublishFlags publish;
  CLI::App* publish_verb = declare_publish(app, publish, network);

  app.require_subcommand(0, 1);
  app.failure_message([](const CLI::App* /*app*/, const CLI::Error& error) {
    return dspack::message_line(fmt::format("reshard: {} (reshard --help explains)", error.what())) + "\n";
  });
  try {
    app.parse(argc, argv);
    const bool repacks = app.get_subcommands().empty();
    const bool has_target = out->count() > 0 || repack.dry_run;
    if (repacks && (!names_recipe(repack) || !has_target)) {
      throw CLI::RequiredError(
          "--by GROUPING (or --recipe FILE) and --out DIR, or a verb (inspect, verify, repair, unpack, link, seal, "
          "diff, publish)");
    }
  } catch (const CLI::ParseError& error) {
    return dspack::format::finish_output(app.exit(error) == 0 ? 0 : 2);
  }

  const dspack::format::InterruptWatch interrupts;
  dspack::format::TerminalProgress progress(stderr, dspack::format::stderr_is_terminal());
  const Context context{remote_options(network, progress), interrupts.token(), progress};
  int status = 0;
  if (inspect_verb->parsed()) {
    status = run_inspect(inspect, context);
  } else if (verify_verb->parsed()) {
    status = run_verify(verify, context);
  } else if (repair_verb->parsed()) {
    status = run_repair(repair, context);
  } else if (unpack_verb->parsed()) {
    status = run_unpack(unpack, context);
  } else if (link_verb->parsed()) {
    status = run_link(link, context);
  } else if (seal_verb->parsed()) {
    status = run_seal(seal, context);
  } else if (diff_verb->parsed()) {
    status = run_diff(diff, context);
  } else if (publish_verb->parsed()) {
    dspack::format::ignore_broken_connections();
    status = run_publish(publish, context);
  } else {
    status = run_repack(repack, context);
  }
  return dspack::format::finish_output(status);
}

}  // namespace

int main(int argc, char** argv) {
  dspack::format::occupy_standard_streams();
  dspack::format::end_where_memory_runs_out("reshard");
  dspack::format::return_large_blocks();
  const auto status = dspack::guarded([&]() -> dspack::Result<int> { return run(argc, argv); });
  if (status) return *status;
  dspack::format::print_error("reshard: " + status.error().message);
  return dspack::format::exit_status(status.error());
}
