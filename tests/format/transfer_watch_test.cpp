#include "format/http/transfer_watch.h"

#include <doctest/doctest.h>

#include <optional>

namespace dspack::format::transfer_watch_test {
namespace {

using Time = TransferWatch::Time;

Time at(int seconds) {
  return Time{} + std::chrono::seconds(seconds);
}

TEST_CASE("transfers: silence counts from the last byte of any of them, or from the first that is under way") {
  TransferWatch watch;
  CHECK(!watch.wait(at(0)));
  {
    TransferWatch::Transfer one(&watch, at(10));
    CHECK(watch.wait(at(14))->silence_seconds == 4);
    TransferWatch::Transfer other(&watch, at(15));
    CHECK(watch.wait(at(16))->silence_seconds == 6);
    other.moved(100, at(17));
    one.moved(50, at(16));  // threads do not come in the order of their clocks
    CHECK(watch.wait(at(20))->silence_seconds == 3);
    CHECK(watch.wait(at(20))->retry == 0);
  }
  CHECK(!watch.wait(at(30)));
  CHECK(watch.moved_bytes() == 150);
  const TransferWatch::Transfer later(&watch, at(40));
  CHECK(watch.wait(at(41))->silence_seconds == 1);
}

TEST_CASE("transfers: the repetition that is told is that of the one which was repeated most, until bytes come") {
  TransferWatch watch;
  TransferWatch::Transfer one(&watch, at(0));
  std::optional<TransferWatch::Transfer> other(std::in_place, &watch, at(0));
  one.pauses(1, 11, 4, at(10));
  other->pauses(3, 11, 8, at(10));
  CHECK(watch.wait(at(12))->retry == 3);
  CHECK(watch.wait(at(12))->retries == 11);
  CHECK(watch.wait(at(12))->pause_seconds == 6);
  CHECK(watch.wait(at(19))->pause_seconds == 0);
  CHECK(watch.wait(at(19))->silence_seconds == 19);
  other->moved(1, at(20));
  CHECK(watch.wait(at(21))->retry == 1);
  one.moved(1, at(22));
  CHECK(watch.wait(at(23))->retry == 0);
  other->pauses(1, 11, 4, at(24));
  other.reset();
  CHECK(watch.wait(at(25))->retry == 0);
}

TEST_CASE("transfers: nobody needs to look") {
  TransferWatch::Transfer one(nullptr, at(0));
  one.pauses(1, 2, 3, at(1));
  one.moved(1, at(2));
}

}  // namespace
}  // namespace dspack::format::transfer_watch_test
