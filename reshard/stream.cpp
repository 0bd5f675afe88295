#include "reshard/stream.h"

#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/base/size_text.h"
#include "format/source/lanes.h"
#include "reshard/scatter.h"

namespace dspack::reshard {
namespace {

using format::Digest;

// Each record comes after twice as many bytes as the one before, up to so many times as many as the first.
constexpr uint64_t kMostToFirst = 64;

/// What the shards under way share.
struct Run {
  const StreamInput& input;
  const JournalState& before;
  PackedWriter& writer;
  format::Progress& progress;
  std::atomic<uint64_t> left;        // shards that are not done
  std::atomic<uint64_t> waiting{0};  // of these, shards that wait for their turn
  std::atomic<uint64_t> again{0};    // bytes of interrupted shards that were read and are not recorded

  /// The jobs that find no shard of their own any more, or wait, lend their connections to those that have one.
  [[nodiscard]] unsigned lanes() const {
    const uint64_t shards = std::min<uint64_t>(input.jobs, left.load(std::memory_order_relaxed));
    const uint64_t idle = waiting.load(std::memory_order_relaxed);
    return static_cast<unsigned>(std::max<uint64_t>(1, input.jobs / (shards > idle ? shards - idle : 1)));
  }
};

/// Refuses bytes that are not those which a list or the Hub declares, before anything made from them is sealed.
Result<void> check_declared(const StreamInput& input, const format::CheckpointFile& file, const Digest& sha256,
                            const std::stop_token& stop) {
  const auto compare = [&](const format::DeclaredFile& wanted, const std::string& by) -> Result<void> {
    if (wanted.sha256 == sha256) return {};
    const std::string place = input.repository.locate(file.path);
    const bool is_cached = input.repository.hub_origin() && place.find("://") == std::string::npos;
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: what was read has SHA-256 {}, {} declares {}; {}", place, to_hex(sha256), by,
                             to_hex(wanted.sha256),
                             is_cached ? "damaged in the local cache: remove it, and it is fetched again"
                                       : "damaged on the way, or another file")};
  };
  if (input.declared) TRY(compare(input.declared->files.at(file.path), input.declared->by));
  TRY_ASSIGN(const auto on_hub, input.repository.declared(file.path, stop));
  if (on_hub) TRY(compare(*on_hub, input.repository.description()));
  return {};
}

/// A shard on its way through the scatterer, and how much of that the journal has.
class Passage {
 public:
  Passage(Run& run, uint64_t shard, const std::stop_token& stop)
      : run_(run),
        shard_(shard),
        stop_(stop),
        scatter_(run.input.plan, run.input.source, shard, run.writer,
                 tensor_reading(run.input.repository, run.input.source, stop)) {}

  Result<ShardDone> run() {
    TRY(resume());
    const Result<void> read = read_ranges();
    if (!read.has_value()) {
      leave_record(read.error());
      return read.error();
    }
    auto done = scatter_.finish();
    if (!done) return done.error().in(run_.input.repository.locate(run_.input.source.files()[shard_].path));
    return done;
  }
  [[nodiscard]] size_t recorded() const { return scatter_.recorded(); }
  [[nodiscard]] bool has_record() const { return has_record_; }

 private:
  Result<void> resume() {
    const auto begun = run_.before.begun.find(shard_);
    if (begun == run_.before.begun.end()) return {};
    TRY(scatter_.resume(begun->second));
    recorded_at_ = begun->second.at;
    has_record_ = true;
    return {};
  }

  Result<void> read_ranges() {
    const StreamInput& input = run_.input;
    const format::CheckpointFile& file = input.source.files()[shard_];
    const ShardRead& wanted = input.plan.reads[shard_];
    if (wanted.ranges.empty()) return {};
    TRY_ASSIGN(const auto bytes, input.repository.open(file.path, stop_));
    if (bytes->size_bytes() != file.size_bytes || bytes->version() != file.version) {
      return Error{ErrorKind::corrupt, input.repository.locate(file.path) +
                                           ": the file changed after its header was read; run the command again"};
    }
    if (wanted.whole && recorded_at_ == 0) run_.progress.advanced(file.data_start);
    for (const ByteRange& range : wanted.ranges) {
      uint64_t at = std::max(range.begin, recorded_at_);
      if (at >= range.end) continue;
      TRY(scatter_.begin_range(at));
      while (at < range.end) {
        TRY_ASSIGN(const uint64_t end, wait_for_turn(at));
        TRY(read({at, std::min(end, range.end)}, *bytes));
        at = std::min(end, range.end);
      }
    }
    return {};
  }

  /// How far may be read from `at`.
  Result<uint64_t> wait_for_turn(uint64_t at) {
    Turns& turns = run_.writer.turns();
    for (;;) {
      const uint64_t end = turns.end_of_turn(shard_, at);
      if (end > at) return end;
      run_.waiting.fetch_add(1, std::memory_order_relaxed);
      const Result<void> waited = turns.wait(shard_, at, stop_);
      run_.waiting.fetch_sub(1, std::memory_order_relaxed);
      TRY(waited);
    }
  }

  Result<void> read(ByteRange range, format::ByteSource& bytes) {
    const format::ByteSink sink = [&](std::span<const std::byte> piece) -> Result<void> {
      while (!piece.empty()) {
        const auto part = piece.first(std::min<uint64_t>(piece.size(), until_record_));
        TRY(scatter_.take(part));
        piece = piece.subspan(part.size());
        unrecorded_ += part.size();
        until_record_ -= part.size();
        run_.progress.advanced(part.size());
        if (until_record_ == 0) TRY(record());
        if (stop_.stop_requested()) return Error{ErrorKind::cancelled, "stopped on request"};
      }
      return {};
    };
    const bool remote = !run_.input.repository.is_local();
    const format::LaneCount lanes = [this, remote] { return remote ? run_.lanes() : 1; };
    return format::stream_in_lanes(bytes, range, lanes, sink, stop_);
  }

  Result<void> record() {
    TRY_ASSIGN(const Scatter::Pause pause, scatter_.pause());
    TRY(run_.writer.shard_begun(pause.begun, pause.file_hashes));
    scatter_.recorded(pause.begun);
    has_record_ = true;
    unrecorded_ = scatter_.at() - pause.begun.at;
    record_after_ = std::min(2 * record_after_, kMostToFirst * run_.input.first_record_bytes);
    until_record_ = record_after_;
    return {};
  }

  /// What was read before a stop, or before the network failed, is as good as ever; of other errors that is not
  /// certain.
  void leave_record(const Error& error) {
    const bool is_good = error.kind == ErrorKind::cancelled || error.kind == ErrorKind::network;
    if (is_good && unrecorded_ != 0) (void)record();  // if that fails, more is read again
    run_.again.fetch_add(unrecorded_, std::memory_order_relaxed);
  }

  Run& run_;
  uint64_t shard_;
  const std::stop_token& stop_;
  Scatter scatter_;
  uint64_t recorded_at_ = 0;  // where an earlier run came to
  bool has_record_ = false;   // of this run or an earlier one
  uint64_t unrecorded_ = 0;   // bytes
  uint64_t record_after_ = run_.input.first_record_bytes;
  uint64_t until_record_ = record_after_;
};

Result<ShardDone> stream_shard(Run& run, uint64_t shard, const std::stop_token& stop) {
  const StreamInput& input = run.input;
  // Others may write to the same disk: what cannot end well is better stopped now than at the last byte.
  // What other jobs write between the two questions must not count as missing: the disk is asked first.
  TRY_ASSIGN(const uint64_t free_bytes, input.files.free_bytes(input.scope.out));
  TRY_ASSIGN(const uint64_t need, run.writer.missing_bytes());
  TRY(check_disk(need, free_bytes, input.scope.out));
  const format::CheckpointFile& file = input.source.files()[shard];
  Passage passage(run, shard, stop);
  auto done = passage.run();
  if (!done) return done.error();
  if (done->sha256) {
    const Result<void> declared = check_declared(input, file, *done->sha256, stop);
    if (!declared.has_value()) {
      // What is recorded of such a shard must not be gone on with. If this cannot be said, the next run finds it again.
      if (declared.error().kind == ErrorKind::corrupt && passage.has_record()) (void)run.writer.forget(shard);
      return declared.error();
    }
  }
  TRY(run.writer.shard_done(*done, passage.recorded()));
  return done;
}

}  // namespace

uint64_t unread_bytes(const Plan& plan, const format::Checkpoint& source, const JournalState& done, uint64_t shard) {
  if (done.shards.contains(shard)) return 0;
  const auto begun = done.begun.find(shard);
  if (begun == done.begun.end()) return shard_bytes(plan, source, shard);
  uint64_t bytes = 0;
  for (const ByteRange& range : plan.reads[shard].ranges)
    bytes += range.end - std::clamp(begun->second.at, range.begin, range.end);
  return bytes;
}

Result<std::vector<ShardDone>> stream_shards(const StreamInput& input, const JournalState& done, PackedWriter& writer,
                                             format::Progress& progress, const std::stop_token& stop) {
  std::vector<ShardDone> yielded(input.plan.shards.size());
  std::vector<uint64_t> todo;
  uint64_t todo_bytes = 0;
  for (const uint64_t shard : input.scope.shards) {
    if (done.shards.contains(shard)) continue;
    todo.push_back(shard);
    todo_bytes += unread_bytes(input.plan, input.source, done, shard);
  }
  std::ranges::reverse(todo);  // Turns says why
  const size_t shards = input.scope.shards.size();
  if (!todo.empty() && (todo.size() != shards || !done.begun.empty())) {
    progress.note(fmt::format("resuming: {} of {} source shards are done, {} more are begun; {} to read",
                              shards - todo.size(), shards, done.begun.size(), size_words(todo_bytes)));
  }
  progress.started("packing", todo_bytes, shards);
  for (const uint64_t shard : input.scope.shards) {
    const auto record = done.shards.find(shard);
    if (record == done.shards.end()) continue;
    yielded[shard] = record->second;
    if (const auto& sha256 = record->second.sha256) {
      TRY(check_declared(input, input.source.files()[shard], *sha256, stop));
    }
    progress.file_done();
  }
  Run run{input, done, writer, progress, todo.size()};
  const auto run_one = [&](uint64_t number, const std::stop_token& stop_one) -> Result<void> {
    TRY_ASSIGN(yielded[todo[number]], stream_shard(run, todo[number], stop_one));
    run.left.fetch_sub(1, std::memory_order_relaxed);
    progress.file_done();
    return {};
  };
  const Result<void> streamed = run_jobs(todo.size(), input.jobs, run_one, stop);
  if (streamed.has_value()) return yielded;
  if (streamed.error().kind != ErrorKind::cancelled) return streamed.error();
  return Error{ErrorKind::cancelled, fmt::format("{}; {} of what was read will be read again", streamed.error().message,
                                                 size_words(run.again.load(std::memory_order_relaxed)))};
}

}  // namespace dspack::reshard
