// The compiler of forms: bounds on hostile ones, and who waits for whom.
#include "runtime/generate/constraint_compiler.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/support/grammar_lab.h"

namespace dspack::runtime::constraint_compiler_test {
namespace {

using test::is_there;
using test::json_form;
using Lab = test::GrammarLab;
constexpr uint32_t kEnd = Lab::kEnd;

/// Whether an answer of such a form was ended before it had a hundred tokens; nullopt: it was not.
std::optional<Error> fails(const Lab& lab, TokenConstraint& constraint) {
  std::mt19937 random(1);
  std::vector<uint32_t> answer;
  while (answer.size() < 100) {
    const auto bits = constraint.allowed_after(answer);
    if (!bits) return bits.error();
    std::vector<uint32_t> tokens;
    for (uint32_t token = 0; token < lab.vocab; ++token)
      if (allows(*bits, token) && token != kEnd) tokens.push_back(token);
    if (tokens.empty()) return std::nullopt;
    answer.push_back(tokens[random() % tokens.size()]);
  }
  return std::nullopt;
}

TEST_CASE("constraint: a form that takes endless work is ended, and the next one is served") {
  if (!is_there()) return;
  const Lab lab;
  const auto start = std::chrono::steady_clock::now();
  auto made = lab.compile({{"type", "regex"}, {"pattern", "(([a-z]{1,100}){1,100}){1,100}"}});
  const std::optional<Error> failure = made ? fails(lab, **made) : made.error();
  REQUIRE(failure);
  CHECK_MESSAGE(failure->message.find("too long") != std::string::npos, failure->message);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
  CHECK(!fails(lab, *lab.constraint(json_form({{"type", "string"}}))));
}

TEST_CASE("constraint: forms that nobody waits for any more make room at once, and are not compiled") {
  if (!is_there()) return;
  const Lab lab;
  const std::string form = json_form({{"type", "integer"}}).dump();
  std::promise<void> begun, released;
  (*lab.compiler)
      ->compile(form, "a",
                [&](const auto&) {
                  begun.set_value();
                  released.get_future().wait();  // the compiling thread does nothing else meanwhile
                },
                {});
  begun.get_future().wait();
  std::stop_source gone;
  std::atomic<int> compiled = 0;
  bool is_full = false;
  while (!is_full) {
    (*lab.compiler)
        ->compile(
            form, "a",
            [&](const auto& made) {
              if (made)
                ++compiled;
              else
                is_full = made.error().kind == ErrorKind::budget;
            },
            gone.get_token());
  }
  gone.request_stop();
  std::promise<bool> served;
  (*lab.compiler)->compile(form, "a", [&](const auto& made) { served.set_value(made.has_value()); }, {});
  released.set_value();
  CHECK(served.get_future().get());
  CHECK(compiled == 0);
}

TEST_CASE("constraint: short forms do not wait for long ones, whose work ends when their clients leave") {
  if (!is_there()) return;
  const Lab lab;
  // Read by the library itself, which dsrun leaves to it no more: a schema of 1 kB that takes minutes.
  OrderedJson schema = {{"type", "object"}, {"properties", OrderedJson::object()}};
  for (int i = 0; i < 20; ++i)
    schema["properties"]["p" + std::to_string(i)] = {{"type", "string"}, {"pattern", "^.{0,4000}x.{0,4000}$"}};
  std::stop_source gone;
  std::atomic<int> bombs_done = 0;
  for (int i = 0; i < 8; ++i) {
    schema["title"] = i;
    const OrderedJson bomb = {{"type", "json_schema"}, {"json_schema", schema}};
    (*lab.compiler)
        ->compile(
            bomb.dump(), "hostile", [&](const auto&) { ++bombs_done; }, gone.get_token());
  }
  std::promise<bool> served;
  (*lab.compiler)
      ->compile(json_form({{"type", "boolean"}}).dump(), "other",
                [&](auto made) { served.set_value(made.has_value()); }, {});
  CHECK(served.get_future().get());
  CHECK(bombs_done == 0);  // one of them would take ten seconds
  gone.request_stop();
  std::promise<bool> next;
  (*lab.compiler)
      ->compile(json_form({{"type", "null"}}).dump(), "hostile", [&](auto made) { next.set_value(made.has_value()); },
                {});
  CHECK(next.get_future().get());
  CHECK(bombs_done == 0);
}

TEST_CASE("constraint: what the library cannot read, or would pass over, is refused") {
  if (!is_there()) return;
  const Lab lab;
  for (const char* pattern : {"^(a(?=b)", "[z-a]", "(a"}) {
    CAPTURE(pattern);
    const auto made = lab.compile({{"type", "regex"}, {"pattern", pattern}});
    REQUIRE(!made);
    CHECK(made.error().kind == ErrorKind::unsupported);
  }
}

}  // namespace
}  // namespace dspack::runtime::constraint_compiler_test
