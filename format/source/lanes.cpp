#include "format/source/lanes.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "format/base/checked.h"
#include "format/base/guarded.h"

namespace dspack::format {
namespace {

using Piece = std::vector<std::byte>;

/// The pieces of a range between those who fetch them and the one who hands them on. Bounds within the range are
/// multiples of kPieceBytes of the file, where no compressed frame is cut in two.
class PieceQueue {
 public:
  PieceQueue(ByteSource& source, ByteRange range, const std::stop_token& stop)
      : source_(source),
        range_(range),
        count_(range.size() == 0 ? 0 : ceil_div(range.end, kPieceBytes) - range.begin / kPieceBytes),
        pass_on_(stop, [this] { stop_all_.request_stop(); }) {}

  ~PieceQueue() { stop_all_.request_stop(); }
  PieceQueue(const PieceQueue&) = delete;
  PieceQueue& operator=(const PieceQueue&) = delete;

  Result<void> run(const LaneCount& lanes, const ByteSink& sink) {
    for (uint64_t number = 0; number < count_; ++number) {
      start_lanes(lanes());
      TRY_ASSIGN(Piece piece, take(number));
      TRY(sink(piece));
      give_back(std::move(piece));
    }
    return {};
  }

 private:
  void start_lanes(unsigned wanted) {
    while (threads_.size() < wanted) {
      {
        const std::lock_guard lock(mutex_);
        ++window_;
      }
      threads_.emplace_back([this] { fetch_pieces(); });
    }
  }

  void fetch_pieces() {
    const std::stop_token stop = stop_all_.get_token();
    for (;;) {
      std::unique_lock lock(mutex_);
      const bool wanted =
          changed_.wait(lock, stop, [this] { return claimed_ >= count_ || claimed_ < taken_ + window_; });
      if (!wanted || claimed_ >= count_) return;
      const uint64_t number = claimed_++;
      Piece piece = std::move(spare_);
      spare_ = {};
      lock.unlock();

      const uint64_t grid = (range_.begin / kPieceBytes + number) * kPieceBytes;
      const uint64_t begin = std::max(range_.begin, grid);
      const Result<void> read = guarded([&] {
        piece.resize(std::min(range_.end, grid + kPieceBytes) - begin);
        return source_.read(begin, piece, stop);
      });
      lock.lock();
      if (read.has_value()) {
        ready_.emplace(number, std::move(piece));
      } else if (!error_) {
        error_ = read.error();
        stop_all_.request_stop();  // the other lanes' pieces are of no use now
      }
      changed_.notify_all();
    }
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
  uint64_t count_;
  std::stop_source stop_all_;
  std::stop_callback<std::function<void()>> pass_on_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<uint64_t, Piece> ready_;  // guarded by mutex_, as is all that follows
  Piece spare_;                      // memory for the next piece
  std::optional<Error> error_;
  uint64_t claimed_ = 0;
  uint64_t taken_ = 0;
  uint64_t window_ = 1;                // pieces in memory: one a lane, and the one being handed on
  std::vector<std::jthread> threads_;  // last: joined before what they use goes
};

}  // namespace

Result<void> stream_in_lanes(ByteSource& source, ByteRange range, const LaneCount& lanes, const ByteSink& sink,
                             const std::stop_token& stop) {
  uint64_t at = range.begin;
  const auto worth_splitting = [&] { return range.end - at > 2 * kPieceBytes && lanes() > 1; };
  if (!worth_splitting()) {
    bool split = false;
    const ByteSink watch = [&](std::span<const std::byte> bytes) -> Result<void> {
      TRY(sink(bytes));
      at += bytes.size();
      split = worth_splitting();
      if (split) return Error{ErrorKind::cancelled, "goes on over several connections"};
      return {};
    };
    Result<void> streamed = source.stream(range, watch, stop);
    if (!split) return streamed;
  }
  return PieceQueue(source, {at, range.end}, stop).run(lanes, sink);
}

}  // namespace dspack::format
