#include "runtime/generate/form_queue.h"

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <utility>

namespace dspack::runtime::form_queue_test {
namespace {

bool push(FormQueue& queue, const std::string& client, const std::string& form, std::stop_token gone = {}) {
  WantedForm wanted{.form = form, .client = client, .done = {}, .gone = std::move(gone)};
  return queue.push(wanted);
}

TEST_CASE("form queue: clients come in turn, and a client's own forms in their order") {
  FormQueue queue;
  for (const char* form : {"1", "2", "3", "4"})
    CHECK(push(queue, "a", form));
  CHECK(push(queue, "b", "5"));
  CHECK(push(queue, "c", "6"));
  CHECK(push(queue, "b", "7"));
  std::string order;
  for (int i = 0; i < 3; ++i)
    order += queue.take({})->form;
  CHECK(push(queue, "d", "8"));
  for (int i = 0; i < 5; ++i)
    order += queue.take({})->form;
  CHECK(order == "15682734");
}

TEST_CASE("form queue: one client's fill leaves room for others, and those that left make room") {
  FormQueue queue;
  std::stop_source gone;
  for (size_t i = 0; i < FormQueue::kMaxOfClient; ++i)
    CHECK(push(queue, "a", "x", gone.get_token()));
  CHECK_FALSE(push(queue, "a", "x"));
  CHECK(push(queue, "b", "y"));
  gone.request_stop();
  CHECK(push(queue, "a", "z"));
  CHECK(queue.take({})->form == "y");
  CHECK(queue.take({})->form == "z");
  for (size_t client = 0; client < FormQueue::kMax; ++client)
    CHECK(push(queue, std::to_string(client), "x"));
  CHECK_FALSE(push(queue, "one more", "x"));
}

TEST_CASE("form queue: who waits is told when all ends") {
  FormQueue queue;
  std::jthread waiting([&queue](const std::stop_token& stop) { CHECK_FALSE(queue.take(stop)); });
  waiting.request_stop();
}

}  // namespace
}  // namespace dspack::runtime::form_queue_test
