// `reshard seal`: makes a packed repository of what parts have packed, or of what dsrun has kept of a distant one.
#include <fmt/format.h>

#include "format/cli/output.h"
#include "format/cli/terminal_progress.h"
#include "reshard/cli/opened.h"
#include "reshard/run/run_state.h"
#include "reshard/run/seal_parts.h"
#include "reshard/verbs/seal_cache.h"

namespace dspack::reshard {
namespace {

Result<int> seal_work(const SealFlags& flags, const JournalHead& begun, const Context& context) {
  TRY_ASSIGN(const std::string source, begun_source(flags.folder, flags.source, begun));
  auto recipe = parse_recipe(begun.recipe.dump());
  if (!recipe) return recipe.error().in(flags.folder + ": the recipe that its journal tells");
  format::RemoteOptions remote = context.remote;
  remote.hub_pinned = begun.origin;
  remote.local_links = format::LinkRule::inside;
  TRY_ASSIGN(const auto repository, open_repository(source, remote, format::posix_file_system(), context.stop));
  const RepackOptions options{.recipe = std::move(*recipe), .out = flags.folder, .jobs = flags.jobs};
  TRY_ASSIGN(const RepackOutlook outlook, prepare_repack(*repository, options, context.stop));
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

Result<int> seal_or_error(const SealFlags& flags, const Context& context) {
  TRY_ASSIGN(const auto begun, unfinished_work(flags.folder, format::posix_file_system()));
  if (begun) return seal_work(flags, *begun, context);
  TRY_ASSIGN(const SealOutcome outcome, seal_cache(flags.folder, context.remote, flags.jobs,
                                                   format::posix_file_system(), context.progress, context.stop));
  if (outcome.missing_files != 0) {
    std::string names;
    for (const std::string& path : outcome.first)
      names += (names.empty() ? "" : ", ") + path;
    format::print_error(fmt::format(
        "reshard: {}: {} files are not complete, {} are missing ({}{}); let dsrun go on with it, or pack the place "
        "itself with reshard SOURCE --by expert --out DIR",
        flags.folder, outcome.missing_files, format::human_bytes(outcome.missing_bytes), names,
        outcome.missing_files > outcome.first.size() ? ", ..." : ""));
    return 1;
  }
  format::print_out(
      fmt::format("{}: {}\n", flags.folder,
                  outcome.was_sealed ? "is a packed repository already" : "sealed; it is a packed repository"));
  return 0;
}

}  // namespace

int run_seal(const SealFlags& flags, const Context& context) {
  return status_of(seal_or_error(flags, context));
}

}  // namespace dspack::reshard
