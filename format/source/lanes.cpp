#include "format/source/lanes.h"

#include <algorithm>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "format/base/checked.h"
#include "format/base/guarded.h"

namespace dspack::format {
namespace {

using Piece = std::vector<std::byte>;
using Permit = Connections::Permit;

/// The pieces of a range between those who fetch them and the one who hands them on. Bounds within the range are
/// multiples of the piece of the file.
class PieceQueue {
 public:
  PieceQueue(ByteSource& source, ByteRange range, Connections& connections, uint64_t piece_bytes,
             const std::stop_token& stop)
      : source_(source),
        range_(range),
        connections_(connections),
        piece_bytes_(piece_bytes),
        count_(range.size() == 0 ? 0 : ceil_div(range.end, piece_bytes) - range.begin / piece_bytes),
        pass_on_(stop, [this] { stop_all_.request_stop(); }) {}

  ~PieceQueue() { stop_all_.request_stop(); }
  PieceQueue(const PieceQueue&) = delete;
  PieceQueue& operator=(const PieceQueue&) = delete;

  /// `lent`: the second connection, if there is one already; the first is the caller's.
  Result<void> run(std::optional<Permit> lent, const ByteSink& sink) {
    start_lane(std::nullopt);
    if (lent) start_lane(std::move(lent));
    for (uint64_t number = 0; number < count_; ++number) {
      while (auto permit = connections_.lend(reap_lanes()))
        start_lane(std::move(permit));
      TRY_ASSIGN(Piece piece, take(number));
      TRY(sink(piece));
      give_back(std::move(piece));
    }
    return {};
  }

 private:
  struct Lane {
    std::optional<Permit> permit;  // nullopt: the caller holds it
    bool is_done = false;          // guarded by mutex_
    std::jthread thread{};         // last: joined before the rest goes
  };

  void start_lane(std::optional<Permit> permit) {
    {
      const std::lock_guard lock(mutex_);
      ++window_;
      changed_.notify_all();
    }
    Lane& lane = lanes_.emplace_back(Lane{.permit = std::move(permit)});
    lane.thread = std::jthread([this, &lane] { fetch_pieces(lane); });
  }

  /// Forgets the lanes that have given their connection back. How many are left.
  unsigned reap_lanes() {
    std::list<Lane> done;
    const std::lock_guard lock(mutex_);
    for (auto lane = lanes_.begin(); lane != lanes_.end();) {
      const auto next = std::next(lane);
      if (lane->is_done) done.splice(done.end(), lanes_, lane);
      lane = next;
    }
    return static_cast<unsigned>(lanes_.size());
  }

  void fetch_pieces(Lane& lane) {
    const std::stop_token stop = stop_all_.get_token();
    std::unique_lock lock(mutex_);
    while (!lane.permit || !connections_.are_wanted_back()) {
      const bool wanted =
          changed_.wait(lock, stop, [this] { return claimed_ >= count_ || claimed_ < taken_ + window_; });
      if (!wanted || claimed_ >= count_ || stop.stop_requested()) break;
      const uint64_t number = claimed_++;
      Piece piece = std::move(spare_);
      spare_ = {};
      lock.unlock();
      const Result<void> fetched = guarded([&] { return fetch(number, piece, stop); });
      lock.lock();
      if (fetched.has_value()) {
        ready_.emplace(number, std::move(piece));
      } else if (!error_) {
        error_ = fetched.error();
        stop_all_.request_stop();  // the other lanes' pieces are of no use now
      }
      changed_.notify_all();
    }
    lane.permit.reset();
    lane.is_done = true;
    --window_;
  }

  Result<void> fetch(uint64_t number, Piece& piece, const std::stop_token& stop) {
    const uint64_t grid = (range_.begin / piece_bytes_ + number) * piece_bytes_;
    const ByteRange range{std::max(range_.begin, grid), std::min(range_.end, grid + piece_bytes_)};
    piece.resize(range.size());
    size_t filled = 0;
    const ByteSink copy = [&](std::span<const std::byte> bytes) -> Result<void> {
      connections_.received(bytes.size());
      std::ranges::copy(bytes, piece.begin() + static_cast<std::ptrdiff_t>(filled));
      filled += bytes.size();
      return {};
    };
    return source_.stream(range, copy, stop);
  }

  /// Waits for a piece.
  Result<Piece> take(uint64_t number) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait(lock, stop_all_.get_token(), [&] { return error_ || ready_.contains(number); });
    if (error_) return *error_;
    if (!came) return Error{ErrorKind::cancelled, "stopped on request"};
    return std::move(ready_.extract(number).mapped());
  }

  void give_back(Piece piece) {
    const std::lock_guard lock(mutex_);
    spare_ = std::move(piece);
    ++taken_;
    changed_.notify_all();
  }

  ByteSource& source_;
  ByteRange range_;
  Connections& connections_;
  uint64_t piece_bytes_;
  uint64_t count_;
  std::stop_source stop_all_;
  std::stop_callback<std::function<void()>> pass_on_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<uint64_t, Piece> ready_;  // guarded by mutex_, as is all that follows but the list of lanes
  Piece spare_;                      // memory for the next piece
  std::optional<Error> error_;
  uint64_t claimed_ = 0;
  uint64_t taken_ = 0;
  uint64_t window_ = 1;    // pieces in memory: one a lane, and the one being handed on
  std::list<Lane> lanes_;  // changed by run() alone; last: joined before what they use goes
};

}  // namespace

Result<void> stream_in_lanes(ByteSource& source, ByteRange range, Connections& connections, uint64_t piece_bytes,
                             const ByteSink& sink, const std::stop_token& stop) {
  uint64_t at = range.begin;
  std::optional<Permit> lent;
  const auto borrow = [&] {
    if (!lent && range.end - at > 2 * piece_bytes) lent = connections.lend(1);
    return lent.has_value();
  };
  if (!borrow()) {
    std::stop_source stop_stream;  // ends the one long answer where a second connection comes to help
    const std::stop_callback pass_on(stop, [&stop_stream] { stop_stream.request_stop(); });
    const ByteSink watch = [&](std::span<const std::byte> bytes) -> Result<void> {
      connections.received(bytes.size());
      TRY(sink(bytes));
      at += bytes.size();
      if (borrow()) stop_stream.request_stop();
      return {};
    };
    Result<void> streamed = source.stream(range, watch, stop_stream.get_token());
    const bool is_cut = lent && !streamed.has_value() && streamed.error().kind == ErrorKind::cancelled;
    if (!is_cut || stop.stop_requested()) return streamed;
  }
  return PieceQueue(source, {at, range.end}, connections, piece_bytes, stop).run(std::move(lent), sink);
}

}  // namespace dspack::format
