// `reshard unpack`: ordinary shards from a packed repository.
#include <chrono>

#include <fmt/format.h>

#include "format/base/seconds.h"
#include "format/cli/output.h"
#include "reshard/cli/places.h"
#include "reshard/cli/verbs.h"
#include "reshard/verbs/unpack.h"

namespace dspack::reshard {
namespace {

struct UnpackFlags {
  NetworkFlags network;
  std::string folder;
  std::string out;
  bool exact = false;
  uint64_t shard_bytes = kDefaultShardBytes;
  unsigned jobs = 4;
};

using format::human_bytes;
using format::print_out;

Result<int> run_unpack(const UnpackFlags& flags, format::Process& process) {
  const auto begin = std::chrono::steady_clock::now();  // includes opening the place
  TRY(format::try_output_folder(flags.out));
  const Context context = make_context(process, flags.network);
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
  const double seconds = seconds_since(begin);
  uint64_t bytes = 0;
  for (const ShardImage& shard : plan.shards)
    bytes += shard.size_bytes;
  const std::string count = plan.shards.size() == 1 ? "1 shard" : fmt::format("{} shards", plan.shards.size());
  print_out(fmt::format("{}: {} ({}){}, {} other files; {}\n", flags.out, count, human_bytes(bytes),
                        flags.exact ? ", each with the SHA-256 of the original" : "",
                        plan.companions.size() + (plan.index ? 1 : 0), duration_words(seconds)));
  return 0;
}

void add_unpack_options(format::OptionTable& table, UnpackFlags& flags) {
  table.add("DIR", "", flags.folder, "Packed repository: folder, http(s):// folder or org/name[@revision]").required();
  table.add("--out", "DIR", flags.out, "Folder for the shards").required();
  auto exact = table.flag("--exact", flags.exact,
                          "The shards that it was made from, byte for byte, each with its recorded SHA-256");
  table
      .add("--shard-size", "SIZE", flags.shard_bytes, format::parse_some_size,
           "Bytes of tensors in one shard: 5GB, 512MiB, ...")
      .shows_default("5GB")
      .excludes(exact);
  add_jobs(table, flags.jobs, "Shards made at a time; bounds memory and connections");
  add_network_options(table, flags.network);
  table.footer("After a kill or an interruption the same command resumes: finished shards stay, others start again.");
}

}  // namespace

format::Verb unpack_verb() {
  return format::make_verb("unpack", "Write ordinary shards from a packed repository", add_unpack_options, run_unpack);
}

}  // namespace dspack::reshard
