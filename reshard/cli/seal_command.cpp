// `reshard seal`: makes a packed repository of what dsrun has kept of a distant one.
#include <fmt/format.h>

#include "format/cli/output.h"
#include "format/cli/terminal_progress.h"
#include "reshard/cli/opened.h"
#include "reshard/seal_cache.h"

namespace dspack::reshard {
namespace {

Result<int> seal_or_error(const SealFlags& flags, const Context& context) {
  TRY_ASSIGN(const SealOutcome outcome, seal_cache(flags.folder, context.remote, flags.jobs,
                                                   format::posix_file_system(), context.progress, context.stop));
  if (outcome.missing_files != 0) {
    std::string names;
    for (const std::string& path : outcome.first)
      names += (names.empty() ? "" : ", ") + format::printable(path);
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
