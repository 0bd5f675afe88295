#include <doctest/doctest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "format/source/lanes.h"

using namespace dspack;
using format::ByteSink;
using format::kPieceBytes;

namespace {

constexpr uint64_t kBytes = 5 * kPieceBytes + 1234;

std::byte byte_at(uint64_t offset) {
  return static_cast<std::byte>((offset * 2654435761U) >> 13);
}

/// A source whose reads take different times, so that pieces arrive out of order.
class FakeSource final : public format::ByteSource {
 public:
  uint64_t size_bytes() const override { return kBytes; }
  const std::string& version() const override { return version_; }

  Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) override {
    const unsigned now = ++under_way;
    unsigned most = most_under_way;
    while (most < now && !most_under_way.compare_exchange_weak(most, now)) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(offset / kPieceBytes % 2 == 0 ? 20 : 1));
    --under_way;
    if (offset >= fail_from) return Error{ErrorKind::network, "lost"};
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "stopped on request"};
    for (size_t i = 0; i < into.size(); ++i)
      into[i] = byte_at(offset + i);
    return {};
  }

  Result<void> stream(ByteRange range, const ByteSink& sink, std::stop_token stop) override {
    ++streams;
    std::vector<std::byte> piece(1 << 18);
    for (uint64_t at = range.begin; at < range.end;) {
      if (stop.stop_requested()) return Error{ErrorKind::cancelled, "stopped on request"};
      const auto part = std::span(piece).first(std::min<uint64_t>(piece.size(), range.end - at));
      for (size_t i = 0; i < part.size(); ++i)
        part[i] = byte_at(at + i);
      TRY(sink(part));
      at += part.size();
    }
    return {};
  }

  uint64_t fail_from = kBytes;
  std::atomic<unsigned> streams{0};
  std::atomic<unsigned> under_way{0};
  std::atomic<unsigned> most_under_way{0};

 private:
  std::string version_;
};

/// Checks every byte against its place.
struct Check {
  uint64_t at = 0;
  bool right = true;
  Result<void> operator()(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes)
      right = right && byte == byte_at(at++);
    return {};
  }
};

}  // namespace

TEST_CASE("lanes: one connection streams, several fetch pieces, and the bytes come in order") {
  for (const unsigned lanes : {1U, 2U, 3U, 8U}) {
    FakeSource source;
    Check check{.at = 100};
    const auto done = format::stream_in_lanes(source, {100, kBytes}, [lanes] { return lanes; }, std::ref(check), {});
    REQUIRE(done.has_value());
    CHECK(check.right);
    CHECK(check.at == kBytes);
    CHECK(source.streams == (lanes == 1 ? 1 : 0));
    CHECK(source.most_under_way <= lanes);
  }
}

TEST_CASE("lanes: connections that become free on the way are used from there on") {
  FakeSource source;
  Check check;
  const auto lanes = [&check] { return check.at < kPieceBytes ? 1U : 3U; };
  const auto done = format::stream_in_lanes(source, {0, kBytes}, lanes, std::ref(check), {});
  REQUIRE(done.has_value());
  CHECK(check.right);
  CHECK(check.at == kBytes);
  CHECK(source.streams == 1);
  CHECK(source.most_under_way > 1);
}

TEST_CASE("lanes: a lost piece, a sink that refuses and a stop end the transfer with their own reason") {
  FakeSource source;
  source.fail_from = 3 * kPieceBytes;
  Check check;
  const auto lost = format::stream_in_lanes(source, {0, kBytes}, [] { return 3U; }, std::ref(check), {});
  REQUIRE(!lost.has_value());
  CHECK(lost.error().kind == ErrorKind::network);
  CHECK(check.right);

  FakeSource sound;
  const ByteSink refuse = [](std::span<const std::byte>) -> Result<void> { return Error{ErrorKind::io, "full"}; };
  const auto refused = format::stream_in_lanes(sound, {0, kBytes}, [] { return 3U; }, refuse, {});
  REQUIRE(!refused.has_value());
  CHECK(refused.error().kind == ErrorKind::io);

  std::stop_source stop;
  const ByteSink stopping = [&stop](std::span<const std::byte>) -> Result<void> {
    stop.request_stop();
    return {};
  };
  FakeSource whole;
  const auto stopped = format::stream_in_lanes(
      whole, {0, kBytes}, [] { return 2U; }, stopping, stop.get_token());
  REQUIRE(!stopped.has_value());
  CHECK(stopped.error().kind == ErrorKind::cancelled);
}
