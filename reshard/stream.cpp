#include "reshard/stream.h"

#include <algorithm>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/source/lanes.h"
#include "reshard/scatter.h"

namespace dspack::reshard {
namespace {

using format::Digest;

// Over a network: what the first shards are read with. Fewer would waste the time until it is known that more are worth
// it.
constexpr unsigned kFirstConnections = 4;

/// What the shards under way share.
struct Run {
  const StreamInput& input;
  PackedWriter& writer;
  format::Progress& progress;
  format::Connections connections;
  uint64_t piece_bytes;
};

/// Of a folder as many files are read at a time as was asked for.
format::ConnectionGrowth growth_of(const StreamInput& input) {
  const unsigned most = std::max(1U, input.jobs);
  return {input.repository.is_local() ? most : std::min(most, kFirstConnections), most};
}

/// Refuses bytes that are not those which a list or the place declares, before anything made from them is sealed.
Result<void> check_shard(const StreamInput& input, const format::CheckpointFile& file, const Digest& sha256,
                         const std::map<format::HashKind, std::string>& others, const std::stop_token& stop) {
  std::vector<Declared> declared = declared_of(file.path, input.declared, file.declared);
  TRY_ASSIGN(const auto on_hub, input.repository.declared(file.path, stop));
  if (on_hub) declared.push_back(declared_sha256(on_hub->sha256, input.repository.description()));
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
  TRY_ASSIGN(auto connection, run.connections.take(shard, stop));
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
    for (const ByteRange& range : wanted.ranges) {
      TRY(scatter.begin_range(range.begin));
      if (input.repository.is_local()) {
        TRY(bytes->stream(range, sink, stop));
      } else {
        TRY(format::stream_in_lanes(*bytes, range, run.connections, run.piece_bytes, sink, stop));
      }
    }
  }
  connection.give_back();  // another shard is read while this one is sealed
  auto done = scatter.finish();
  if (!done) return done.error().in(place);
  if (done->sha256) TRY(check_shard(input, file, *done->sha256, others.finish(), stop));
  TRY(run.writer.shard_done(*done));
  return done;
}

}  // namespace

uint64_t piece_bytes(unsigned connections, uint64_t shards, uint64_t tensors) {
  constexpr uint64_t kAll = 256ULL << 20;
  // The program, 16 receive buffers and as many staging buffers; and what catalogue, plan and digests take of
  // DeepSeek-V3 (92,000 tensors in 163 shards: 174 MiB resident with four jobs, 2026-11-20).
  constexpr uint64_t kProgram = 64ULL << 20;
  constexpr uint64_t kTensor = 1500;
  constexpr uint64_t kLeast = 32ULL << 20;
  constexpr uint64_t kLongest = 8 * format::kPieceUnit;
  const uint64_t taken = kProgram + kTensor * tensors;
  const uint64_t left = std::max(kLeast, kAll - std::min(kAll, taken));
  // A piece a connection, and for each shard the one that is handed on; a shard of its own takes two connections at
  // least.
  const uint64_t pieces = connections + std::clamp<uint64_t>(shards, 1, std::max(1U, connections / 2));
  return std::clamp(left / pieces / format::kPieceUnit * format::kPieceUnit, format::kPieceUnit, kLongest);
}

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
  Run run{input, writer, progress, format::Connections(growth_of(input), input.counters),
          piece_bytes(input.jobs, todo.size(), input.source.tensors().size())};
  const auto run_one = [&](uint64_t number, const std::stop_token& stop_one) -> Result<void> {
    TRY_ASSIGN(yielded[todo[number]], stream_shard(run, todo[number], stop_one));
    progress.file_done();
    return {};
  };
  TRY(run_jobs(todo.size(), input.jobs, run_one, stop));
  return yielded;
}

}  // namespace dspack::reshard
