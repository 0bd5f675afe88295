#include "reshard/stream.h"

#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/source/lanes.h"
#include "reshard/scatter.h"

namespace dspack::reshard {
namespace {

using format::Digest;
/// What the shards under way share.
struct Run {
  const StreamInput& input;
  PackedWriter& writer;
  format::Progress& progress;
  std::atomic<uint64_t> left;  // shards that are not done

  /// The jobs that find no shard of their own any more lend their connections to those that have one.
  [[nodiscard]] unsigned lanes() const {
    const uint64_t shards = std::max<uint64_t>(1, left.load(std::memory_order_relaxed));
    return static_cast<unsigned>(std::max<uint64_t>(1, input.jobs / shards));
  }
};

/// Refuses bytes that are not those which a list or the place declares, before anything made from them is sealed.
Result<void> check_shard(const StreamInput& input, const format::CheckpointFile& file, const Digest& sha256,
                         const std::map<format::HashKind, std::string>& others, const std::stop_token& stop) {
  std::vector<Declared> declared = declared_of(file.path, input.declared, file.declared);
  TRY_ASSIGN(const auto on_hub, input.repository.declared(file.path, stop));
  if (on_hub) {
    const format::ContentDigest digest{format::HashKind::sha256, to_hex(on_hub->sha256), {}};
    declared.push_back({digest, input.repository.description()});
  }
  const auto fits = check_declared(declared, sha256, others);
  if (fits) return {};
  const std::string place = input.repository.locate(file.path);
  const bool is_cached = input.repository.hub_origin() && place.find("://") == std::string::npos;
  return Error{ErrorKind::corrupt,
               fmt::format("{}: {}; {}", place, fits.error().message,
                           is_cached ? "damaged in the local cache: remove it, and it is fetched again"
                                     : "damaged on the way, or another file")};
}

Result<ShardDone> stream_shard(Run& run, uint64_t shard, const std::stop_token& stop) {
  const StreamInput& input = run.input;
  // Others may write to the same disk: what cannot end well is better stopped now than at the last byte.
  // What other jobs write between the two questions must not count as missing: the disk is asked first.
  TRY_ASSIGN(const uint64_t free_bytes, input.files.free_bytes(input.scope.out));
  TRY_ASSIGN(const uint64_t need, run.writer.missing_bytes());
  TRY(check_disk(need, free_bytes, input.scope.out));
  const format::CheckpointFile& file = input.source.files()[shard];
  const ShardRead& wanted = input.plan.reads[shard];
  const std::string place = input.repository.locate(file.path);
  // What ranges say nothing of cannot be compared with a digest of the whole.
  OtherHashes others(wanted.whole ? declared_of(file.path, input.declared, file.declared) : std::vector<Declared>());
  others.update(std::as_bytes(std::span(file.header)));
  Scatter scatter(input.plan, input.source, shard, run.writer, tensor_reading(input.repository, input.source, stop));
  if (!wanted.ranges.empty()) {
    TRY_ASSIGN(const auto bytes, input.repository.open(file.path, stop));
    if (bytes->size_bytes() != file.size_bytes || bytes->version() != file.version) {
      return Error{ErrorKind::corrupt, place + ": the file changed after its header was read; run the command again"};
    }
    if (wanted.whole) run.progress.advanced(file.data_start);
    const format::ByteSink sink = [&](std::span<const std::byte> piece) -> Result<void> {
      TRY(scatter.take(piece));
      others.update(piece);
      run.progress.advanced(piece.size());
      return {};
    };
    const bool remote = !input.repository.is_local();
    const format::LaneCount lanes = [&run, remote] { return remote ? run.lanes() : 1; };
    for (const ByteRange& range : wanted.ranges) {
      TRY(scatter.begin_range(range.begin));
      TRY(format::stream_in_lanes(*bytes, range, lanes, sink, stop));
    }
  }
  auto done = scatter.finish();
  if (!done) return done.error().in(place);
  if (done->sha256) TRY(check_shard(input, file, *done->sha256, others.finish(), stop));
  TRY(run.writer.shard_done(*done));
  return done;
}

}  // namespace

Result<std::vector<ShardDone>> stream_shards(const StreamInput& input, const JournalState& done, PackedWriter& writer,
                                             format::Progress& progress, const std::stop_token& stop) {
  std::vector<ShardDone> yielded(input.plan.shards.size());
  std::vector<uint64_t> todo;
  uint64_t todo_bytes = 0;
  for (const uint64_t shard : input.scope.shards) {
    if (done.shards.contains(shard)) continue;
    todo.push_back(shard);
    todo_bytes += shard_bytes(input.plan, input.source, shard);
  }
  const size_t shards = input.scope.shards.size();
  if (!todo.empty() && todo.size() != shards)
    progress.note(fmt::format("resuming: {} of {} source shards are done", shards - todo.size(), shards));
  progress.started("packing", todo_bytes, shards);
  for (const uint64_t shard : input.scope.shards) {
    const auto record = done.shards.find(shard);
    if (record == done.shards.end()) continue;
    yielded[shard] = record->second;
    if (const auto& sha256 = record->second.sha256) {
      TRY(check_shard(input, input.source.files()[shard], *sha256, {}, stop));
    }
    progress.file_done();
  }
  Run run{input, writer, progress, todo.size()};
  const auto run_one = [&](uint64_t number, const std::stop_token& stop_one) -> Result<void> {
    TRY_ASSIGN(yielded[todo[number]], stream_shard(run, todo[number], stop_one));
    run.left.fetch_sub(1, std::memory_order_relaxed);
    progress.file_done();
    return {};
  };
  TRY(run_jobs(todo.size(), input.jobs, run_one, stop));
  return yielded;
}

}  // namespace dspack::reshard
