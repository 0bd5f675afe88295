// What requests take, measured by counting what is allocated, against what they say before.
#include "runtime/budget/request_memory.h"

#include <doctest/doctest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>

#include "runtime/serve/answer_request.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"
#include "tests/runtime/support/stored_tensors.h"

namespace {

std::atomic<int64_t> held = 0;
std::atomic<int64_t> highest = 0;

void count(int64_t bytes) {
  const int64_t now = held += bytes;
  int64_t before = highest;
  while (now > before && !highest.compare_exchange_weak(before, now)) {
  }
}

}  // namespace

void* operator new(size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  count(static_cast<int64_t>(malloc_usable_size(memory)));
  return memory;
}

// Sorting asks so for its buffer, and a sanitizer has its own.
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  void* const memory = std::malloc(bytes);
  if (memory != nullptr) count(static_cast<int64_t>(malloc_usable_size(memory)));
  return memory;
}

void operator delete(void* memory) noexcept {
  if (memory != nullptr) count(-static_cast<int64_t>(malloc_usable_size(memory)));
  std::free(memory);
}

void operator delete(void* memory, size_t /*bytes*/) noexcept {
  operator delete(memory);
}

namespace dspack::runtime::request_memory_test {
namespace {

/// The most that was held beside what was held before.
template <class Work>
uint64_t peak_of(Work work) {
  const int64_t before = held;
  highest = before;
  work();
  return static_cast<uint64_t>(highest - before);
}

std::string repeated(std::string_view text, size_t bytes) {
  std::string all;
  all.reserve(bytes + text.size());
  while (all.size() < bytes)
    all += text;
  return all;
}

std::string chat_of(const std::string& messages, const std::string& more = "") {
  return R"({"messages":[)" + messages + "]" + more + "}";
}

TEST_CASE("request memory: reading a body, rendering and encoding it take no more than was said") {
  const auto chat = ChatTemplate::named("deepseek-v3");
  REQUIRE(chat);
  std::ifstream file(test::tiny_folder() / "tokenizer.json");
  const std::string json((std::istreambuf_iterator<char>(file)), {});
  const auto tokenizer = Tokenizer::from_json(json);
  REQUIRE(tokenizer);
  constexpr size_t kBytes = 600'000;
  const std::string user = R"({"role":"user","content":"x"})";
  const auto said = [](const std::string& text) { return R"({"role":"user","content":")" + text + "\"}"; };
  const auto list = [](std::string all) {
    all.pop_back();
    return all;
  };
  const std::vector<std::string> bodies = {
      chat_of(said(repeated(" ", kBytes))),
      chat_of(said(repeated("a", kBytes))),
      chat_of(said(repeated("7 ", kBytes))),
      chat_of(said(repeated("\\u0000", kBytes))),
      chat_of(said(repeated("\xe6\xbc\xa2", kBytes))),
      chat_of(list(repeated(user + ",", kBytes))),
      chat_of(list(repeated(R"({"role":"user","content":""},)", kBytes))),
      chat_of(user, R"(,"x":[)" + list(repeated("1,", kBytes)) + "]"),
      chat_of(user, R"(,"x":[)" + list(repeated("[],", kBytes)) + "]"),
      chat_of(user, R"(,"x":[)" + list(repeated("{},", kBytes)) + "]"),
      chat_of(user, R"(,"x":[)" + list(repeated(R"({"":[1]},)", kBytes)) + "]"),
      chat_of(user, R"(,"x":[)" + list(repeated(R"("",)", kBytes)) + "]"),
      chat_of(user, R"(,"chat_template_kwargs":{"x":[)" + list(repeated("[{}],", kBytes)) + "]}"),
      chat_of(user, R"(,"tools":[)" +
                        list(repeated(R"({"type":"function","function":{"name":"f","parameters":{}}},)", kBytes)) +
                        "]"),
  };
  for (const std::string& body : bodies) {
    CAPTURE(body.substr(0, 120));
    std::string text;
    const uint64_t reading = peak_of([&] {
      const auto request = parse_chat_request(body, {});
      if (!request) return;
      const auto& conversation = std::get<Conversation>(request->prompt);
      const auto rendered =
          chat->render(conversation.messages, {.tools = conversation.tools, .arguments = conversation.arguments});
      if (rendered) text = *rendered;
    });
    CHECK(reading <= reading_bytes(body));
    CHECK(reading * 40 >= reading_bytes(body));  // nor is it far from that
    const uint64_t encoding = peak_of([&] { (void)tokenizer->encode(text, SpecialTokens::parse); });
    CHECK(encoding <= encoding_bytes(text.size()) + (1U << 20U));
    MESSAGE("reading " << reading / 1000 << " of " << reading_bytes(body) / 1000 << " kB, encoding " << encoding / 1000
                       << " of " << encoding_bytes(text.size()) / 1000 << " kB");
  }
}

TEST_CASE("request memory: a request gets what is left, is told to come again, or never to") {
  RequestMemory memory(1000);
  RequestMemory::Share first(memory);
  RequestMemory::Share second(memory);
  CHECK(first.need(600));
  CHECK(second.need(400));
  const auto later = second.need(401);
  REQUIRE(!later);
  CHECK(later.error().kind == ErrorKind::conflict);
  CHECK((second.bytes() == 400 && memory.taken() == 1000));
  const auto never = second.need(1001);
  REQUIRE(!never);
  CHECK(never.error().kind == ErrorKind::invalid);
  CHECK(first.need(100));
  CHECK(second.need(900));
  {
    const RequestMemory::Share moved(std::move(second));
    CHECK(moved.bytes() == 900);
  }
  CHECK(memory.taken() == 100);
}

TEST_CASE("request memory: a quarter of the limit, within bounds, of which bodies have a third") {
  const RequestBounds usual = request_bounds(1'000'000'000);
  CHECK(usual.all() == 250'000'000);
  CHECK((usual.arriving_bytes == usual.all() / 6 && usual.waiting_bytes == usual.arriving_bytes));
  CHECK(request_bounds(1).all() == 48U << 20U);
  CHECK(request_bounds(UINT64_MAX).all() == 384U << 20U);
  CHECK(request_bounds(UINT64_MAX).arriving_bytes == 64U << 20U);
}

}  // namespace
}  // namespace dspack::runtime::request_memory_test
