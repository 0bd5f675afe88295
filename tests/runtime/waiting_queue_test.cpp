#include "runtime/generate/waiting_queue.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "tests/runtime/support/scheduling.h"

namespace dspack::runtime::waiting_queue_test {
namespace {

std::vector<Generation> request_of(const std::string& client, uint32_t first, size_t count = 1) {
  std::vector<Generation> request;
  for (uint32_t i = 0; i < count; ++i)
    request.push_back({.prompt = {first + i}, .sampler = test::sampler_of({}), .listener = {}, .client = client});
  return request;
}

std::vector<uint32_t> take_all_in_turn(WaitingQueue& queue, const std::map<std::string, uint32_t>& places = {}) {
  std::vector<uint32_t> order;
  const auto held = [&](const std::string& client) { return places.contains(client) ? places.at(client) : 0; };
  while (const auto next = queue.take(held))
    order.push_back(next->prompt.front());
  return order;
}

TEST_CASE(
    "waiting queue: clients have their turns, each in its order, and one that comes later does not wait for all") {
  WaitingQueue queue(64);
  for (const uint32_t i : {10U, 11U, 12U, 13U})
    REQUIRE(queue.add(request_of("a", i)));
  REQUIRE(queue.add(request_of("b", 20, 3)));
  CHECK(queue.take([](const std::string&) { return 0U; })->prompt.front() == 10);
  REQUIRE(queue.add(request_of("c", 30)));
  CHECK(take_all_in_turn(queue) == std::vector<uint32_t>{20, 30, 11, 21, 12, 22, 13});
}

TEST_CASE("waiting queue: a client's last turn is remembered after all its requests are gone") {
  WaitingQueue queue(64);
  REQUIRE(queue.add(request_of("a", 10)));
  CHECK(take_all_in_turn(queue) == std::vector<uint32_t>{10});
  REQUIRE(queue.add(request_of("a", 11)));
  REQUIRE(queue.add(request_of("b", 20)));
  CHECK(take_all_in_turn(queue) == std::vector<uint32_t>{20, 11});
}

TEST_CASE("waiting queue: whoever has fewer places comes first") {
  WaitingQueue queue(64);
  for (const uint32_t i : {10U, 11U})
    REQUIRE(queue.add(request_of("a", i)));
  for (const uint32_t i : {20U, 21U})
    REQUIRE(queue.add(request_of("b", i)));
  CHECK(take_all_in_turn(queue, {{"a", 2}, {"b", 1}}) == std::vector<uint32_t>{20, 21, 10, 11});
}

TEST_CASE("waiting queue: a client fills it alone, and the latest of its requests give way to those of others") {
  WaitingQueue queue(4);
  for (const uint32_t i : {10U, 11U, 12U})
    REQUIRE(queue.add(request_of("a", i)));
  REQUIRE(queue.add(request_of("a", 13, 2)));
  const auto fifth = queue.add(request_of("a", 15));
  REQUIRE(!fifth);
  CHECK(fifth.error().kind == ErrorKind::budget);
  CHECK(fifth.error().message == "4 requests are waiting already, for 5 answers; 4 may, for 2048");
  const auto other = queue.add(request_of("b", 20));
  REQUIRE(other);
  REQUIRE(other->size() == 2);
  CHECK((other->front().prompt.front() == 13 && other->back().prompt.front() == 14));
  const auto second = queue.add(request_of("b", 21));
  REQUIRE(second);
  CHECK((second->size() == 1 && second->front().prompt.front() == 12));
  CHECK(!queue.add(request_of("b", 22)));  // both have two
  CHECK(!queue.add(request_of("a", 16)));
  const auto third = queue.add(request_of("c", 30));
  REQUIRE(third);
  CHECK(third->size() == 1);
  CHECK(take_all_in_turn(queue).size() == 4);
}

TEST_CASE("waiting queue: answers are bounded as well, nothing gives way in vain, and too many at once never fit") {
  WaitingQueue queue(64);
  REQUIRE(queue.add(request_of("a", 0, kMaxWaiting - 100)));
  REQUIRE(queue.add(request_of("b", 0, 100)));
  const auto more = queue.add(request_of("a", 0));
  REQUIRE(!more);
  CHECK(more.error().kind == ErrorKind::budget);
  CHECK(queue.wanted() == kMaxWaiting);
  const auto gave_way = queue.add(request_of("c", 0, 5));
  REQUIRE(gave_way);
  CHECK(gave_way->size() == kMaxWaiting - 100);
  CHECK(queue.wanted() == 105);
  const auto never = queue.add(request_of("d", 0, kMaxWaiting + 1));
  REQUIRE(!never);
  CHECK(never.error().kind == ErrorKind::invalid);
}

TEST_CASE("waiting queue: those who left are taken out in their order, and the others stay") {
  WaitingQueue queue(64);
  std::stop_source gone;
  for (uint32_t i = 0; i < 6; ++i) {
    auto request = request_of(i < 3 ? "a" : "b", i);
    if (i % 2 == 0) request.front().gone = gone.get_token();
    REQUIRE(queue.add(std::move(request)));
  }
  gone.request_stop();
  CHECK(queue.wanted() == 3);
  const auto left = queue.take_gone();
  REQUIRE(left.size() == 3);
  for (uint32_t i = 0; i < 3; ++i)
    CHECK(left[i].prompt.front() == 2 * i);
  CHECK(take_all_in_turn(queue) == std::vector<uint32_t>{1, 3, 5});
  CHECK(queue.empty());
}

}  // namespace
}  // namespace dspack::runtime::waiting_queue_test
