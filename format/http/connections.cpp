#include "format/http/connections.h"

#include <algorithm>
#include <list>
#include <map>
#include <thread>
#include <vector>

#include "format/base/result.h"

namespace dspack::format {
namespace {

// Long compared to round trips and bursts, which must not affect a measurement; short compared to a download.
constexpr double kIntervalSeconds = 0.5;
// On a slow line an interval lasts longer, until its rate means something.
constexpr uint64_t kIntervalBytes = 1ULL << 20;
// Connections are refused together: a refusal so soon after another counts as the same one.
constexpr std::chrono::seconds kOneRefusal{1};
// Share of the limit that must have been in use on average: a connection rests for a moment between two files.
constexpr double kInUse = 0.9;

// Share of the growth in connections that must show in the rate. Much less than all of it: rates vary from one interval
// to the next, and connections share the capacity that the server or a disk has left.
constexpr double kWorth = 0.25;

constexpr unsigned kLongestPause = 64;
constexpr unsigned kPauseAfterRefusal = 20;

}  // namespace

void ConnectionGrowth::measured(double bytes_per_second) {
  if (settles_) {
    settles_ = false;
    return;
  }
  if (grown_from_ == 0) {
    if (pause_ == 0) return grow(bytes_per_second);
    --pause_;
    return;
  }
  const double growth = static_cast<double>(limit_) / grown_from_ - 1;
  if (bytes_per_second >= rate_before_ * (1 + kWorth * growth)) return grow(bytes_per_second);
  change_to(grown_from_);
  is_first_growth_ = false;
  pause_ = next_pause_;
  next_pause_ = std::min(2 * next_pause_, kLongestPause);
}

void ConnectionGrowth::refused() {
  change_to(std::max(1U, limit_ / 2));
  is_first_growth_ = false;
  pause_ = kPauseAfterRefusal;
}

void ConnectionGrowth::grow(double bytes_per_second) {
  const unsigned before = limit_;
  const unsigned step = is_first_growth_ ? 3 * limit_ : std::max(1U, limit_ / 4);
  change_to(limit_ + std::min(step, most_ - limit_));
  if (limit_ == before) return;
  grown_from_ = before;
  rate_before_ = bytes_per_second;
}

void ConnectionGrowth::change_to(unsigned limit) {
  settles_ = limit != limit_;
  limit_ = limit;
  grown_from_ = 0;
}

Connections::Connections(ConnectionGrowth growth, std::shared_ptr<const TransferCounters> counters)
    : growth_(growth), counters_(std::move(counters)), refusals_(counters_ ? counters_->refusals.load() : 0) {}

Result<Connections::Permit> Connections::take(uint64_t number, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  waiting_.insert(number);
  const bool is_free =
      changed_.wait(lock, stop, [&] { return in_use_ < growth_.limit() && *waiting_.begin() == number; });
  waiting_.erase(number);
  changed_.notify_all();
  if (!is_free) return stopped();
  count_use(Clock::now());
  ++in_use_;
  return Permit(*this);
}

std::optional<Connections::Permit> Connections::lend() {
  const std::lock_guard lock(mutex_);
  if (in_use_ >= growth_.limit() || !waiting_.empty()) return std::nullopt;
  count_use(Clock::now());
  ++in_use_;
  return Permit(*this);
}

bool Connections::are_wanted_back() const {
  const std::lock_guard lock(mutex_);
  return in_use_ > growth_.limit() || (!waiting_.empty() && in_use_ == growth_.limit());
}

void Connections::received(uint64_t bytes, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (counters_ && counters_->refusals != refusals_) {
    refusals_ = counters_->refusals;
    if (now >= refused_ + kOneRefusal) growth_.refused();
    refused_ = now;
    begin_interval(now);
  }
  if (began_ == Clock::time_point()) begin_interval(now);
  count_use(now);
  interval_bytes_ += bytes;
  const double seconds = std::chrono::duration<double>(now - began_).count();
  if (seconds < kIntervalSeconds || interval_bytes_ < kIntervalBytes) return;
  if (use_seconds_ >= kInUse * growth_.limit() * seconds) {
    const unsigned before = growth_.limit();
    growth_.measured(static_cast<double>(interval_bytes_) / seconds);
    if (growth_.limit() > before) changed_.notify_all();
  }
  begin_interval(now);
}

unsigned Connections::limit() const {
  const std::lock_guard lock(mutex_);
  return growth_.limit();
}

void Connections::given_back() {
  const std::lock_guard lock(mutex_);
  count_use(Clock::now());
  --in_use_;
  changed_.notify_all();
}

/// Threads do not arrive in the order of their clock readings: time already counted is not counted again.
void Connections::count_use(Clock::time_point now) {
  if (now <= counted_) return;
  use_seconds_ += in_use_ * std::chrono::duration<double>(now - counted_).count();
  counted_ = now;
}

void Connections::begin_interval(Clock::time_point now) {
  began_ = counted_ = now;
  use_seconds_ = 0;
  interval_bytes_ = 0;
}

namespace {

using PieceBuffer = std::vector<std::byte>;
using Permit = Connections::Permit;

/// The pieces of a range, between the threads that fetch them and the one that passes them on. Bounds within the range
/// are multiples of kPieceUnit in the file.
class PieceQueue {
 public:
  PieceQueue(ByteSource& source, ByteRange range, Connections& connections, uint64_t piece_bytes,
             const std::stop_token& stop)
      : source_(source),
        range_(range),
        connections_(connections),
        piece_bytes_(piece_bytes),
        pass_on_(stop, [this] { stop_all_.request_stop(); }),
        claimed_(range.begin) {}

  ~PieceQueue() { stop_all_.request_stop(); }
  PieceQueue(const PieceQueue&) = delete;
  PieceQueue& operator=(const PieceQueue&) = delete;

  /// `lent`: the permit for a second connection, if there is one already; the caller holds the first.
  Result<void> run(std::optional<Permit> lent, const ByteSink& sink) {
    start_lane(std::nullopt);
    if (lent) start_lane(std::move(lent));
    for (uint64_t at = range_.begin; at < range_.end;) {
      TRY_ASSIGN(PieceBuffer piece, take(at));
      at += piece.size();
      TRY(sink(piece));
      give_back(std::move(piece));
    }
    return {};
  }

 private:
  struct Lane {
    std::optional<Permit> permit;  // nullopt: the caller holds it
    bool is_done = false;          // guarded by mutex_
    std::jthread thread{};         // last: joined before the other members are destroyed
  };

  /// Only called by the thread of run().
  void start_lane(std::optional<Permit> permit) {
    std::list<Lane> done;  // joined at the end, without the lock
    const std::lock_guard lock(mutex_);
    for (auto lane = lanes_.begin(); lane != lanes_.end();) {
      const auto next = std::next(lane);
      if (lane->is_done) done.splice(done.end(), lanes_, lane);
      lane = next;
    }
    ++window_;
    Lane& lane = lanes_.emplace_back(Lane{.permit = std::move(permit)});
    lane.thread = std::jthread([this, &lane] { fetch_pieces(lane); });
    changed_.notify_all();
  }

  void fetch_pieces(Lane& lane) {
    const std::stop_token stop = stop_all_.get_token();
    std::unique_lock lock(mutex_);
    while (!lane.permit || !connections_.are_wanted_back()) {
      const bool wanted = changed_.wait(lock, stop, [this] { return claimed_ == range_.end || under_way_ < window_; });
      if (!wanted || claimed_ == range_.end || stop.stop_requested()) break;
      const ByteRange range = claim();
      PieceBuffer piece;
      if (!spares_.empty()) {
        piece = std::move(spares_.back());
        spares_.pop_back();
      }
      lock.unlock();
      const Result<void> fetched = guarded([&] { return fetch(range, piece, stop); });
      lock.lock();
      if (fetched.has_value()) {
        ready_.emplace(range.begin, std::move(piece));
      } else if (!error_) {
        error_ = fetched.error();
        stop_all_.request_stop();  // the other lanes' pieces are no longer needed
      }
      changed_.notify_all();
    }
    lane.permit.reset();
    lane.is_done = true;
    --window_;
  }

  /// Claims the next piece. The last ones are shorter, so that all lanes end at about the same time.
  ByteRange claim() {
    const uint64_t size = std::clamp((range_.end - claimed_) / window_, kPieceUnit, piece_bytes_);
    const uint64_t next_unit = claimed_ / kPieceUnit + 1;
    const uint64_t end = std::max(next_unit, (claimed_ + size) / kPieceUnit) * kPieceUnit;
    const ByteRange range{claimed_, std::min(end, range_.end)};
    claimed_ = range.end;
    ++under_way_;
    return range;
  }

  Result<void> fetch(ByteRange range, PieceBuffer& piece, const std::stop_token& stop) {
    piece.resize(range.size());
    size_t filled = 0;
    const ByteSink copy = [&](std::span<const std::byte> bytes) -> Result<void> {
      connections_.received(bytes.size());
      std::ranges::copy(bytes, piece.begin() + static_cast<std::ptrdiff_t>(filled));
      filled += bytes.size();
      look_for_another();
      return {};
    };
    return source_.stream(range, copy, stop);
  }

  /// Offers a connection that has become free to run().
  void look_for_another() {
    const std::lock_guard lock(mutex_);
    if (offered_ || claimed_ == range_.end) return;
    offered_ = connections_.lend();
    if (offered_) changed_.notify_all();
  }

  /// Waits for the piece that begins at `at`, and starts lanes for connections that are offered meanwhile.
  Result<PieceBuffer> take(uint64_t at) {
    std::unique_lock lock(mutex_);
    for (;;) {
      const bool came =
          changed_.wait(lock, stop_all_.get_token(), [&] { return error_ || offered_ || ready_.contains(at); });
      if (error_) return *error_;
      if (!came) return stopped();
      if (!offered_) return std::move(ready_.extract(at).mapped());
      std::optional<Permit> permit = std::exchange(offered_, std::nullopt);
      lock.unlock();
      start_lane(std::move(permit));
      lock.lock();
    }
  }

  void give_back(PieceBuffer piece) {
    const std::lock_guard lock(mutex_);
    spares_.push_back(std::move(piece));
    --under_way_;
    changed_.notify_all();
  }

  ByteSource& source_;
  ByteRange range_;
  Connections& connections_;
  uint64_t piece_bytes_;
  std::stop_source stop_all_;
  std::stop_callback<std::function<void()>> pass_on_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<uint64_t, PieceBuffer> ready_;  // by offset; guarded by mutex_, as are all following members
  std::vector<PieceBuffer> spares_;        // buffers for the next pieces: fresh pages cost more than copying into them
  std::optional<Permit> offered_;          // for a lane that is to be started
  std::optional<Error> error_;
  uint64_t claimed_;        // everything before this offset is being fetched or was
  uint64_t under_way_ = 0;  // pieces in memory
  uint64_t window_ = 1;     // limit on under_way_: one per lane, and the one being passed on
  std::list<Lane> lanes_;   // changed only by run(); last: joined before what they use is destroyed
};

}  // namespace

Result<void> stream_in_parallel(ByteSource& source, ByteRange range, Connections& connections, uint64_t piece_bytes,
                                const ByteSink& sink, const std::stop_token& stop) {
  uint64_t at = range.begin;
  std::optional<Permit> lent;
  const auto borrow = [&] {
    if (!lent && range.end - at > 2 * piece_bytes) lent = connections.lend();
    return lent.has_value();
  };
  if (!borrow()) {
    std::stop_source stop_stream;  // ends the single stream when a second connection is lent
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
