// `reshard seal`: makes a packed repository from finished parts, or from what dsrun has cached of a distant one.
#include <fmt/format.h>

#include "format/cli/output.h"
#include "reshard/cli/places.h"
#include "reshard/cli/verbs.h"
#include "reshard/run/run_state.h"
#include "reshard/run/seal_parts.h"
#include "reshard/verbs/seal_cache.h"

namespace dspack::reshard {
namespace {

struct SealFlags {
  NetworkFlags network;
  std::string folder;
  std::string source;  // where the parts' source is now; empty: where the parts read it
  unsigned jobs = 4;
};

Result<int> seal_work(const SealFlags& flags, const JournalHead& begun, const Context& context) {
  TRY_ASSIGN(const std::string source, begun_source(flags.folder, flags.source, begun));
  auto recipe = parse_recipe(begun.recipe.dump());
  if (!recipe) return recipe.error().in(flags.folder + ": the recipe in its journal");
  format::RemoteOptions remote = context.remote;
  remote.hub_pinned = begun.origin;
  remote.local_links = format::LinkRule::inside;
  TRY_ASSIGN(const auto repository, open_repository(source, remote, format::posix_file_system(), context.stop));
  const RepackOptions options{.recipe = std::move(*recipe), .out = flags.folder, .jobs = flags.jobs};
  TRY_ASSIGN(const RepackOutlook outlook, prepare_repack(*repository, options, context.stop, &context.progress));
  context.progress.finished();
  TRY_ASSIGN(const RepackOutcome outcome,
             seal_parts(outlook, *repository, options, format::posix_file_system(), context.progress, context.stop));
  if (outcome == RepackOutcome::already_complete) {
    format::print_out(fmt::format("{}: complete already\n", flags.folder));
    return 0;
  }
  format::print_out(fmt::format("{}: sealed, {} tensors ({}) in {} weight files, {} routed experts\n", flags.folder,
                                outlook.plan.result.tensors().size(),
                                format::human_bytes(outlook.plan.result.payload_bytes()), outlook.plan.files.size(),
                                outlook.plan.result.experts().size()));
  return 0;
}

Result<int> run_seal(const SealFlags& flags, format::Process& process) {
  const Context context = make_context(process, flags.network);
  TRY_ASSIGN(const auto begun, unfinished_work(flags.folder, format::posix_file_system()));
  if (begun) return seal_work(flags, *begun, context);
  TRY_ASSIGN(const SealOutcome outcome, seal_cache(flags.folder, context.remote, flags.jobs,
                                                   format::posix_file_system(), context.progress, context.stop));
  if (outcome.missing_files != 0) {
    std::string names;
    for (const std::string& path : outcome.first)
      names += (names.empty() ? "" : ", ") + path;
    format::print_error(
        fmt::format("reshard: {}: {} files are not complete, {} are missing ({}{}); let dsrun fetch the rest, or pack "
                    "the place itself with reshard SOURCE --by expert --out DIR",
                    flags.folder, outcome.missing_files, format::human_bytes(outcome.missing_bytes), names,
                    outcome.missing_files > outcome.first.size() ? ", ..." : ""));
    return 1;
  }
  format::print_out(
      fmt::format("{}: {}\n", flags.folder,
                  outcome.was_sealed ? "is a packed repository already" : "sealed; it is a packed repository"));
  return 0;
}

void add_seal_options(format::OptionTable& table, SealFlags& flags) {
  table.add("DIR", "", flags.folder, "The --out of reshard --part, or a folder below dsrun's --cache").required();
  table.add("--source", "SOURCE", flags.source, "Of parts: their source as this machine reaches it, if that differs");
  add_jobs(table, flags.jobs, "Files read at a time");
  add_network_options(table, flags.network);
  table.footer(
      "Parts: all must be done; the result is that of one process, byte for byte. A cache folder of dsrun: nothing may "
      "be\n"
      "missing. After a kill or an interruption the same command resumes.");
}

}  // namespace

format::Verb seal_verb() {
  return format::make_verb("seal", "Join finished parts, or a complete cache of dsrun, to a packed repository",
                           add_seal_options, run_seal);
}

}  // namespace dspack::reshard
