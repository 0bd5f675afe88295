// What hostile templates cost: every allocation of this program is counted, so that what the engine says it holds is
// compared with what it does.
#include "hostile_templates.h"

#include <doctest/doctest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <new>
#include <span>
#include <string>
#include <thread>

#include "runtime/text/jinja/program.h"
#include "runtime/text/jinja/text_search.h"
#include "runtime/text/jinja/value.h"

namespace {

std::atomic<size_t> held_bytes;
std::atomic<size_t> most_bytes;

void* counted(void* made) {
  if (made == nullptr) throw std::bad_alloc();
  const size_t held = held_bytes += ::malloc_usable_size(made);
  size_t most = most_bytes;
  while (held > most && !most_bytes.compare_exchange_weak(most, held)) {
  }
  return made;
}

void released(void* pointer) noexcept {
  if (pointer != nullptr) held_bytes -= ::malloc_usable_size(pointer);
  std::free(pointer);  // NOLINT: this is what `delete` is here
}

}  // namespace

void* operator new(size_t bytes) {
  return counted(std::malloc(bytes));  // NOLINT: this is what `new` is here
}
// Sorting asks so for its buffer, and a sanitizer has its own.
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  void* const made = std::malloc(bytes);  // NOLINT: this is what `new` is here
  return made == nullptr ? nullptr : counted(made);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return counted(std::aligned_alloc(static_cast<size_t>(alignment), bytes));
}
void operator delete(void* pointer) noexcept {
  released(pointer);
}
void operator delete(void* pointer, size_t /*bytes*/) noexcept {
  released(pointer);
}
void operator delete(void* pointer, std::align_val_t /*alignment*/) noexcept {
  released(pointer);
}
void operator delete(void* pointer, size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  released(pointer);
}

namespace dspack::hostile_templates {
namespace {

using runtime::jinja::Budget;
using runtime::jinja::Program;

/// The long form has the budget that a template of a model has; the short form a sixteenth.
bool is_long() {
  const char* form = std::getenv("DSPACK_TESTS");
  return form != nullptr && std::string_view(form) == "long";
}

Budget::Limits limits() {
  const uint64_t part = is_long() ? 1 : 16;
  return {.steps = Budget::kBaseSteps / part, .bytes = Budget::kBaseBytes / part};
}

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

End end_of(const Result<std::string>& text) {
  if (text) return End::text;
  const ErrorKind kind = text.error().kind;
  CHECK((kind == ErrorKind::budget || kind == ErrorKind::invalid || kind == ErrorKind::unsupported));
  CHECK(text.error().message.size() < 4000);
  return kind == ErrorKind::budget ? End::budget : End::refusal;
}

void check_bounded(std::span<const Hostile> templates) {
  REQUIRE(templates.size() >= 20);
  const Budget::Limits bounds = limits();
  const nlohmann::ordered_json variables = {{"n", bounds.bytes / 16}};
  for (const Hostile& each : templates) {
    CAPTURE(each.source);
    const auto program = Program::compile(each.source);
    REQUIRE(program.has_value());
    // What is made once and kept, such as a table of characters, is none of a template's.
    constexpr std::string_view kTables =
        "{{ 'a\u03a3' | lower | upper | wordcount }}{{ 'a\u03a3'.title().istitle() }}{{ '1'.isdigit() }}"
        "{{ '1'.isdecimal() }}{{ 'a1'.isalnum() }}{{ '1'.isnumeric() }}";
    (void)Program::compile(kTables)->render(variables, std::tm(), {});
    const size_t before = held_bytes;
    most_bytes = before;
    const double begin = processor_seconds();
    Budget budget(bounds);
    {
      const auto text = program->render(variables, std::tm(), budget);
      const double seconds = processor_seconds() - begin;
      CAPTURE((text ? std::string("text") : text.error().message));
      CHECK(end_of(text) == each.end);
      CHECK(seconds < (is_long() ? 20.0 : 5.0));  // some 30 ns a step, and a sanitizer's tenfold
      const size_t most = most_bytes - before;
      CAPTURE(most);
      CAPTURE(budget.bytes());
      CHECK(budget.bytes() <= bounds.bytes);
      // What is held for a moment and not counted is small.
      CHECK(most <= budget.bytes() + (1U << 20U));
    }
    CHECK(held_bytes <= before + 4096);
  }
}

TEST_CASE("hostile templates: state is no number") {
  check_bounded(kState);
}

TEST_CASE("hostile templates: searches are charged") {
  check_bounded(kSearches);
}

TEST_CASE("hostile templates: memory is asked for") {
  check_bounded(kMemory);
}

TEST_CASE("hostile templates: recursion ends") {
  check_bounded(kRecursion);
}

TEST_CASE("hostile templates: ranges and large numbers") {
  check_bounded(kRanges);
}

TEST_CASE("hostile templates: a rendering ends when it is told to") {
  const auto program =
      Program::compile("{% for i in range(99999) %}{% for j in range(99999) %}{{ 'a' }}{% endfor %}{% endfor %}");
  REQUIRE(program.has_value());
  std::stop_source stop;
  Budget endless({.steps = UINT64_MAX / 2, .bytes = Budget::kBaseBytes}, stop.get_token());
  std::jthread client([&stop] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    stop.request_stop();
  });
  const auto text = program->render(nlohmann::ordered_json::object(), std::tm(), endless);
  REQUIRE_FALSE(text.has_value());
  CHECK(text.error().kind == ErrorKind::cancelled);
  const uint64_t before = endless.steps();
  CHECK(before > 0);
  // Who is told at the beginning does nothing.
  runtime::jinja::Cost cost;
  const auto none = program->render(nlohmann::ordered_json::object(), std::tm(), stop.get_token(), &cost);
  REQUIRE_FALSE(none.has_value());
  CHECK(none.error().kind == ErrorKind::cancelled);
  CHECK(cost.steps < 10);
}

TEST_CASE("hostile templates: the search finds what the standard library finds") {
  uint64_t seed = 42;
  const auto random = [&seed](uint64_t below) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (seed >> 33U) % below;
  };
  const auto word = [&random](size_t most) {
    std::string text;
    const size_t size = random(most + 1);
    const uint64_t letters = 1 + random(3);
    for (size_t i = 0; i < size; ++i)
      text += static_cast<char>('a' + random(letters));
    if (random(2) == 0) text += text;  // with a period
    return text;
  };
  Budget budget(Budget::limits(1U << 20U));
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = word(24);
    const std::string part = random(4) == 0 ? text.substr(random(text.size() + 1), 1 + random(9)) : word(6);
    CAPTURE(text);
    CAPTURE(part);
    REQUIRE(*runtime::jinja::find_first(text, part, budget) == text.find(part));
    REQUIRE(*runtime::jinja::find_last(text, part, budget) == text.rfind(part));
  }
}

TEST_CASE("hostile templates: one with a hundred thousand arguments compiles at once") {
  std::string source = "{{ f(";
  for (int i = 0; i < 100'000; ++i)
    source += "1,";
  const double begin = processor_seconds();
  CHECK(Program::compile(source + "a=1) }}").has_value());
  CHECK_FALSE(Program::compile(source + "a=1, 2) }}").has_value());
  CHECK(processor_seconds() - begin < 5);
}

}  // namespace
}  // namespace dspack::hostile_templates
