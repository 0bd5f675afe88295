#include "reshard/run/stream.h"

#include <algorithm>
#include <atomic>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/base/size.h"
#include "format/http/connections.h"
#include "reshard/run/scatter.h"

namespace dspack::reshard {
namespace {

using format::Digest;

// Connections that read the first shards over a network. With fewer, time would be wasted until it is known that more
// pay off.
constexpr unsigned kFirstConnections = 4;
// Each record comes after twice as many bytes as the one before, up to this multiple of the first.
constexpr uint64_t kMaxToFirst = 64;

/// State shared by the shards under way.
struct Run {
  const StreamInput& input;
  const JournalState& before;
  PackedWriter& writer;
  format::Progress& progress;
  format::Connections connections;
  uint64_t piece_bytes;
  std::atomic<uint64_t> again{0};  // bytes of interrupted shards that were read but not recorded
};

/// For a folder, all requested files are read at once from the start.
format::ConnectionGrowth growth_of(const StreamInput& input) {
  const unsigned most = std::max(1U, input.jobs);
  return {input.repository.is_local() ? most : std::min(most, kFirstConnections), most};
}

constexpr uint64_t kAllBytes = 256ULL << 20;

/// Memory of a run besides pieces of shards: the program; receive buffers; staging buffers of the shards under way;
/// catalogue, plan and digests, measured with DeepSeek-V3 (92,000 tensors in 163 shards, 2026-11).
uint64_t taken_bytes(unsigned connections, uint64_t shards, uint64_t tensors) {
  constexpr uint64_t kProgram = 24ULL << 20;
  constexpr uint64_t kConnection = 512ULL << 10;
  constexpr uint64_t kShard = 2ULL << 20;
  constexpr uint64_t kTensor = 1500;
  const uint64_t under_way = std::min<uint64_t>(connections, shards);
  return kProgram + connections * kConnection + under_way * kShard + tensors * kTensor + kHeldBytes;
}

/// One piece per connection, and per shard the one being passed on; a shard fetched in pieces has at least two
/// connections.
uint64_t pieces_in_memory(unsigned connections, uint64_t shards) {
  return connections + std::clamp<uint64_t>(shards, 1, std::max(1U, connections / 2));
}

/// Refuses bytes that differ from what a list or the place declares, before anything made from them is sealed.
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

/// Streams one shard through the scatterer, and tracks how much of it the journal has.
class Passage {
 public:
  /// `number`: position in the order in which shards are started; the shard may only wait for lower ones.
  Passage(Run& run, uint64_t shard, uint64_t number, const std::stop_token& stop)
      : run_(run),
        shard_(shard),
        number_(number),
        stop_(stop),
        scatter_(run.input.plan, run.input.source, shard, run.writer,
                 tensor_reading(run.input.repository, run.input.source, stop)),
        others_(declared_of_others()) {
    others_.update(format::as_bytes(file().header));
  }

  Result<ShardDone> run() {
    TRY(resume());
    const Result<void> read = read_ranges();
    connection_.reset();  // another shard is read while this one is recorded
    if (!read.has_value()) {
      leave_record(read.error());
      return read.error();
    }
    auto done = scatter_.finish();
    if (!done) return done.error().in(run_.input.repository.locate(file().path));
    return done;
  }
  [[nodiscard]] size_t recorded() const { return scatter_.recorded(); }
  [[nodiscard]] bool has_record() const { return has_record_; }
  /// Whether no declared digest could be compared, because an earlier run has read a part and none of them is SHA-256.
  [[nodiscard]] bool is_unvouched() const {
    const std::vector<Declared> declared = declared_of(file().path, run_.input.declared, file().declared);
    return recorded_at_ != 0 && wanted().whole && !declared.empty() &&
           std::ranges::none_of(declared,
                                [](const Declared& one) { return one.digest.kind == format::HashKind::sha256; });
  }
  /// The declared kinds of digests other than SHA-256. Call after run().
  [[nodiscard]] std::map<format::HashKind, std::string> others() { return others_.finish(); }

 private:
  [[nodiscard]] const format::CheckpointFile& file() const { return run_.input.source.files()[shard_]; }
  [[nodiscard]] const ShardRead& wanted() const { return run_.input.plan.reads[shard_]; }

  /// Ranges cannot be compared with a digest of the whole shard; nor can a shard whose beginning an earlier run has
  /// read, since the journal stores no hash state but SHA-256's.
  [[nodiscard]] std::vector<Declared> declared_of_others() const {
    if (!wanted().whole || run_.before.begun.contains(shard_)) return {};
    return declared_of(file().path, run_.input.declared, file().declared);
  }

  Result<void> resume() {
    const auto begun = run_.before.begun.find(shard_);
    if (begun == run_.before.begun.end()) return {};
    TRY(scatter_.resume(begun->second));
    recorded_at_ = begun->second.at;
    has_record_ = true;
    return {};
  }

  Result<void> read_ranges() {
    for (const ByteRange& range : wanted().ranges) {
      uint64_t at = std::max(range.begin, recorded_at_);
      if (at >= range.end) continue;
      TRY(scatter_.begin_range(at));
      while (at < range.end) {
        TRY_ASSIGN(const uint64_t end, wait_for_turn(at));
        TRY(connect());
        TRY(read({at, std::min(end, range.end)}));
        at = std::min(end, range.end);
      }
    }
    return {};
  }

  /// Returns the offset up to which may be read from `at`. A waiting shard holds no connection: those that it waits for
  /// may need it.
  Result<uint64_t> wait_for_turn(uint64_t at) {
    Turns& turns = run_.writer.turns();
    for (;;) {
      const uint64_t end = turns.end_of_turn(shard_, at);
      if (end > at) return end;
      connection_.reset();
      TRY(turns.wait(shard_, at, stop_));
    }
  }

  /// Obtains a connection and opens the shard, if not done yet.
  Result<void> connect() {
    if (connection_) return {};
    const StreamInput& input = run_.input;
    TRY_ASSIGN(connection_, run_.connections.take(number_, stop_));
    if (bytes_) return {};
    // Others may write to the same disk: if it cannot hold the rest, stop now, not at the last byte. Query the free
    // space first, so that bytes which other jobs write between the two queries do not count as missing.
    TRY_ASSIGN(const uint64_t free_bytes, input.files.free_bytes(input.scope.out));
    TRY_ASSIGN(const uint64_t need, run_.writer.missing_bytes());
    TRY(check_disk(need, free_bytes, input.scope.out));
    TRY_ASSIGN(bytes_, input.repository.open(file().path, stop_));
    TRY(format::check_known({.size_bytes = file().size_bytes, .version = file().version}, bytes_->size_bytes(),
                            bytes_->version(), input.repository.locate(file().path)));
    if (wanted().whole && recorded_at_ == 0) run_.progress.advanced(file().data_start);
    return {};
  }

  Result<void> read(ByteRange range) {
    const format::ByteSink sink = [&](std::span<const std::byte> piece) -> Result<void> {
      while (!piece.empty()) {
        const auto part = piece.first(std::min<uint64_t>(piece.size(), until_record_));
        TRY(scatter_.take(part));
        others_.update(part);
        piece = piece.subspan(part.size());
        unrecorded_ += part.size();
        until_record_ -= part.size();
        run_.progress.advanced(part.size());
        if (until_record_ == 0) TRY(record());
        if (stop_.stop_requested()) return stopped();
      }
      return {};
    };
    if (run_.input.repository.is_local()) return bytes_->stream(range, sink, stop_);
    return format::stream_in_parallel(*bytes_, range, run_.connections, run_.piece_bytes, sink, stop_);
  }

  Result<void> record() {
    TRY_ASSIGN(const Scatter::Pause pause, scatter_.pause());
    TRY(run_.writer.shard_begun(pause.begun, pause.file_hashes));
    scatter_.recorded(pause.begun);
    has_record_ = true;
    unrecorded_ = scatter_.at() - pause.begun.at;
    record_after_ = std::min(2 * record_after_, kMaxToFirst * run_.input.first_record_bytes);
    until_record_ = record_after_;
    return {};
  }

  /// Bytes read before a stop or a network failure are valid, so record them; after other errors that is not certain.
  void leave_record(const Error& error) {
    const bool is_good = error.kind == ErrorKind::cancelled || error.kind == ErrorKind::network;
    if (is_good && unrecorded_ != 0) (void)record();  // if it fails, more is read again
    run_.again.fetch_add(unrecorded_, std::memory_order_relaxed);
  }

  Run& run_;
  uint64_t shard_;
  uint64_t number_;
  const std::stop_token& stop_;
  Scatter scatter_;
  OtherHashes others_;
  std::optional<format::Connections::Permit> connection_{};
  std::unique_ptr<format::ByteSource> bytes_{};  // set by the first connect()
  uint64_t recorded_at_ = 0;                     // offset that an earlier run has recorded
  bool has_record_ = false;                      // by this run or an earlier one
  uint64_t unrecorded_ = 0;                      // bytes since the last record
  uint64_t record_after_ = run_.input.first_record_bytes;
  uint64_t until_record_ = record_after_;
};

Result<ShardDone> stream_shard(Run& run, uint64_t shard, uint64_t number, const std::stop_token& stop) {
  Passage passage(run, shard, number, stop);
  auto done = passage.run();
  if (!done) return done.error();
  if (done->sha256) {
    const Result<void> fits =
        check_shard(run.input, run.input.source.files()[shard], *done->sha256, passage.others(), stop);
    if (!fits.has_value()) {
      // A later run must not resume from this shard's records. If the forgetting fails, the next run detects it again.
      if (fits.error().kind == ErrorKind::corrupt && passage.has_record()) (void)run.writer.forget(shard);
      return fits.error();
    }
  }
  if (passage.is_unvouched()) {
    run.progress.note(fmt::format(
        "note: nothing vouched for the bytes of {}: an earlier run has read its beginning, so what its server declares "
        "of the whole was not compared. Compare with another copy, reshard verify {} --source PLACE",
        run.input.repository.locate(run.input.source.files()[shard].path), run.input.scope.out.string()));
  }
  TRY(run.writer.shard_done(*done, passage.recorded()));
  return done;
}

}  // namespace

unsigned connections_within_memory(uint64_t shards, uint64_t tensors) {
  constexpr unsigned kLeast = 16;
  constexpr unsigned kMost = 64;
  unsigned connections = kLeast;
  while (connections < kMost && taken_bytes(connections + 1, shards, tensors) +
                                        pieces_in_memory(connections + 1, shards) * format::kPieceUnit <=
                                    kAllBytes) {
    ++connections;
  }
  return connections;
}

uint64_t piece_bytes(unsigned connections, uint64_t shards, uint64_t tensors) {
  constexpr uint64_t kLeast = 32ULL << 20;
  constexpr uint64_t kLongest = 8 * format::kPieceUnit;
  const uint64_t taken = taken_bytes(connections, shards, tensors);
  const uint64_t left = std::max(kLeast, kAllBytes - std::min(kAllBytes, taken));
  const uint64_t pieces = std::max<uint64_t>(1, pieces_in_memory(connections, shards));
  return std::clamp(left / pieces / format::kPieceUnit * format::kPieceUnit, format::kPieceUnit, kLongest);
}

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
  std::ranges::reverse(todo);  // for the reason, see Turns
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
      TRY(check_shard(input, input.source.files()[shard], *sha256, {}, stop));
    }
    progress.item_done();
  }
  Run run{.input = input,
          .before = done,
          .writer = writer,
          .progress = progress,
          .connections = format::Connections(growth_of(input), input.counters),
          .piece_bytes = piece_bytes(input.jobs, todo.size(), input.source.tensors().size())};
  const auto run_one = [&](uint64_t number, const std::stop_token& stop_one) -> Result<void> {
    TRY_ASSIGN(yielded[todo[number]], stream_shard(run, todo[number], number, stop_one));
    progress.item_done();
    return {};
  };
  const Result<void> streamed = run_jobs(todo.size(), input.jobs, run_one, stop);
  if (streamed.has_value()) return yielded;
  if (streamed.error().kind != ErrorKind::cancelled) return streamed.error();
  return Error{ErrorKind::cancelled, fmt::format("{}; {} of what was read will be read again", streamed.error().message,
                                                 size_words(run.again.load(std::memory_order_relaxed)))};
}

}  // namespace dspack::reshard
