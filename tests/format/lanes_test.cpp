#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "format/http/connections.h"

namespace dspack::lanes_test {

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
    std::byte* next = into.data();
    const ByteSink copy = [&next](std::span<const std::byte> bytes) -> Result<void> {
      next = std::ranges::copy(bytes, next).out;
      return {};
    };
    return stream({offset, offset + into.size()}, copy, stop);
  }

  Result<void> stream(ByteRange range, const ByteSink& sink, std::stop_token stop) override {
    const Counted counted(*this);
    std::this_thread::sleep_for(std::chrono::milliseconds(range.begin / kPieceBytes % 2 == 0 ? 20 : 1));
    std::vector<std::byte> piece(1 << 18);
    for (uint64_t at = range.begin; at < range.end;) {
      if (at >= fail_from) return Error{ErrorKind::network, "lost"};
      if (stop.stop_requested()) return Error{ErrorKind::cancelled, "stopped on request"};
      const auto part = std::span(piece).first(std::min<uint64_t>(piece.size(), range.end - at));
      for (size_t i = 0; i < part.size(); ++i)
        part[i] = byte_at(at + i);
      TRY(sink(part));
      at += part.size();
      given += part.size();
    }
    return {};
  }

  uint64_t fail_from = kBytes;
  std::atomic<uint64_t> given{0};
  std::atomic<unsigned> under_way{0};
  std::atomic<unsigned> most_under_way{0};

 private:
  struct Counted {
    explicit Counted(FakeSource& owner) : source(owner) {
      const unsigned now = ++source.under_way;
      unsigned most = source.most_under_way;
      while (most < now && !source.most_under_way.compare_exchange_weak(most, now)) {
      }
    }
    ~Counted() { --source.under_way; }
    FakeSource& source;
  };

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

/// So many connections, one of which the caller holds.
struct Line {
  explicit Line(unsigned count) : connections({count, count}), first(connections.take(0, {}).value()) {}

  Result<void> stream(FakeSource& source, ByteRange range, const ByteSink& sink, const std::stop_token& stop = {},
                      uint64_t piece_bytes = kPieceBytes) {
    return format::stream_in_parallel(source, range, connections, piece_bytes, sink, stop);
  }

  format::Connections connections;
  format::Connections::Permit first;
};

TEST_CASE("lanes: one connection streams, several fetch pieces, and the bytes come in order") {
  for (const unsigned lanes : {1U, 2U, 3U, 8U}) {
    FakeSource source;
    Check check{.at = 100};
    REQUIRE(Line(lanes).stream(source, {100, kBytes}, std::ref(check)).has_value());
    CHECK(check.right);
    CHECK(check.at == kBytes);
    CHECK(source.most_under_way <= lanes);
    CHECK((source.most_under_way > 1) == (lanes > 1));
  }
}

TEST_CASE("lanes: connections that become free on the way are used from there on, and every byte comes once") {
  FakeSource source;
  Check check;
  Line line(3);
  std::vector<format::Connections::Permit> others;
  for (const uint64_t number : {1U, 2U})
    others.push_back(line.connections.take(number, {}).value());
  const ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
    TRY(check(bytes));
    if (check.at >= kPieceBytes) others.clear();
    return {};
  };
  REQUIRE(line.stream(source, {0, kBytes}, sink).has_value());
  CHECK(check.right);
  CHECK(check.at == kBytes);
  CHECK(source.given == kBytes);
  CHECK(source.most_under_way > 1);
}

TEST_CASE("lanes: a connection that another transfer waits for is given back on the way") {
  FakeSource source;
  Check check;
  Line line(2);
  std::atomic<bool> has_begun{false};
  std::jthread other;
  const ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
    TRY(check(bytes));
    if (!other.joinable()) {
      other = std::jthread([&] { has_begun = line.connections.take(1, {}).has_value(); });
      while (!line.connections.are_wanted_back() && !has_begun)
        std::this_thread::yield();
    }
    // Half of the pieces are still to be claimed, and the other has its connection.
    for (int i = 0; check.at >= kBytes / 2 && !has_begun && i < 5000; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (check.at >= kBytes / 2) CHECK(has_begun);
    return {};
  };
  REQUIRE(line.stream(source, {0, kBytes}, sink, {}, format::kPieceUnit).has_value());
  CHECK(check.right);
  CHECK(check.at == kBytes);
}

TEST_CASE("lanes: a lost piece, a sink that refuses and a stop end the transfer with their own reason") {
  FakeSource source;
  source.fail_from = 3 * kPieceBytes;
  Check check;
  const auto lost = Line(3).stream(source, {0, kBytes}, std::ref(check));
  REQUIRE(!lost.has_value());
  CHECK(lost.error().kind == ErrorKind::network);
  CHECK(check.right);

  for (const unsigned lanes : {1U, 3U}) {
    FakeSource sound;
    const ByteSink refuse = [](std::span<const std::byte>) -> Result<void> { return Error{ErrorKind::io, "full"}; };
    const auto refused = Line(lanes).stream(sound, {0, kBytes}, refuse);
    REQUIRE(!refused.has_value());
    CHECK(refused.error().kind == ErrorKind::io);

    std::stop_source stop;
    const ByteSink stopping = [&stop](std::span<const std::byte>) -> Result<void> {
      stop.request_stop();
      return {};
    };
    FakeSource whole;
    const auto stopped = Line(lanes).stream(whole, {0, kBytes}, stopping, stop.get_token());
    REQUIRE(!stopped.has_value());
    CHECK(stopped.error().kind == ErrorKind::cancelled);
  }
}

}  // namespace dspack::lanes_test
