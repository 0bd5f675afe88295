// `reshard unpack` and `reshard diff`: from the packed form back, and what two places have different.
#include <chrono>

#include <fmt/format.h>

#include "format/cli/output.h"
#include "format/cli/terminal_progress.h"
#include "reshard/cli/opened.h"
#include "reshard/verbs/diff.h"
#include "reshard/verbs/unpack.h"

namespace dspack::reshard {
namespace {

using format::human_bytes;
using format::print_out;

Result<int> unpack_or_error(const UnpackFlags& flags, const Context& context) {
  const auto begin = std::chrono::steady_clock::now();  // opening the place counts as well
  TRY_ASSIGN(const Opened packed, open_packed(flags.folder, flags.jobs, context));
  const UnpackOptions options{
      .out = flags.out, .exact = flags.exact, .shard_bytes = flags.shard_bytes, .jobs = flags.jobs};
  TRY_ASSIGN(const UnpackPlan plan, prepare_unpack(*packed.repository, packed.checkpoint, options, context.stop));
  TRY_ASSIGN(const UnpackOutcome outcome, unpack(plan, *packed.repository, packed.checkpoint, options,
                                                 format::posix_file_system(), context.progress, context.stop));
  if (outcome == UnpackOutcome::already_there) {
    print_out(fmt::format("{}: every file is there already, by name and size; nothing was done\n", flags.out));
    return 0;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  uint64_t bytes = 0;
  for (const ShardImage& shard : plan.shards)
    bytes += shard.size_bytes;
  const std::string count = plan.shards.size() == 1 ? "1 shard" : fmt::format("{} shards", plan.shards.size());
  print_out(fmt::format("{}: {} ({}){}, {} other files; {:.1f} s\n", flags.out, count, human_bytes(bytes),
                        flags.exact ? ", each with the SHA-256 of the original" : "",
                        plan.companions.size() + (plan.index ? 1 : 0), seconds));
  return 0;
}

Result<int> diff_or_error(const DiffFlags& flags, const Context& context) {
  TRY_ASSIGN(const Opened a, open_place(flags.a, flags.jobs, context));
  TRY_ASSIGN(const Opened b, open_place(flags.b, flags.jobs, context));
  TRY_ASSIGN(const DiffReport report,
             diff({*a.repository, a.checkpoint}, {*b.repository, b.checkpoint},
                  {.companions = !flags.tensors_only, .jobs = flags.jobs}, context.progress, context.stop));
  if (flags.json)
    format::print_json(diff_json(report));
  else
    print_out(diff_text(report));
  return report.equal() ? 0 : 1;
}

}  // namespace

int run_unpack(const UnpackFlags& flags, const Context& context) {
  return status_of(unpack_or_error(flags, context));
}

int run_diff(const DiffFlags& flags, const Context& context) {
  return status_of(diff_or_error(flags, context));
}

}  // namespace dspack::reshard
