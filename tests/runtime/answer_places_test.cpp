#include "runtime/generate/answer_places.h"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

namespace dspack::runtime::answer_places_test {
namespace {

using Tokens = std::vector<uint32_t>;

/// `count` tokens of which those from `from` on are of this conversation alone.
Tokens conversation(uint32_t which, size_t count, size_t from = 0) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0U);
  for (size_t i = from; i < count; ++i)
    tokens[i] += 1000 * which;
  return tokens;
}

TEST_CASE("place choice: a conversation goes on where it was, also where its last answer is written otherwise") {
  const Tokens one = conversation(1, 100);
  const Tokens other = conversation(2, 50);
  Tokens next = conversation(1, 120);
  next[85] = 7;  // within the answer
  const PlaceState held{.tokens = one, .use = {.prompt = 80, .turns = 1, .used = 2}};
  CHECK(choose_place(std::vector{PlaceState{}, held, PlaceState{.tokens = other, .use = {.used = 1}}}, next) == 1);
  next[78] = 7;  // the template's mark of thinking, say
  CHECK(goes_on(held, next));
  next[60] = 7;
  CHECK(!goes_on(held, next));
  CHECK(choose_place(std::vector{PlaceState{}, held}, next) == 0);
  CHECK(choose_place(std::vector{PlaceState{.is_free = false}, held}, next) == 1);
}

TEST_CASE("place choice: what only begins alike takes no place but the one that is computed again for least") {
  const Tokens main = conversation(1, 400, 50);
  const Tokens brief = conversation(2, 70, 50);
  const Tokens prompt = conversation(3, 90, 50);
  const PlaceState of_main{.tokens = main, .use = {.prompt = 300, .turns = 1, .used = 1}};
  const PlaceState of_brief{.tokens = brief, .use = {.prompt = 60, .turns = 1, .used = 9}};
  CHECK(choose_place(std::vector{of_main, PlaceState{}}, prompt) == 1);
  CHECK(choose_place(std::vector{of_main, of_brief}, prompt) == 1);
  CHECK(choose_place(std::vector{of_main, of_brief}, Tokens{}) == 1);
}

TEST_CASE("place choice: turns count, until a conversation was passed over often") {
  const Tokens one = conversation(1, 100);
  const Tokens other = conversation(2, 150);
  PlaceState of_one{.tokens = one, .use = {.prompt = 90, .turns = 4, .used = 1}};
  const PlaceState of_other{.tokens = other, .use = {.prompt = 90, .turns = 1, .used = 2}};
  const Tokens prompt = conversation(3, 40);
  CHECK(choose_place(std::vector{of_one, of_other}, prompt) == 1);
  of_one.use.passed_over = kMaxPassedOver;
  CHECK(choose_place(std::vector{of_one, of_other}, prompt) == 0);
}

TEST_CASE("place choice: of equals the one that was unused for longest") {
  const Tokens one = conversation(1, 100);
  const Tokens other = conversation(2, 100);
  const PlaceState of_one{.tokens = one, .use = {.prompt = 90, .turns = 1, .used = 2}};
  const PlaceState of_other{.tokens = other, .use = {.prompt = 90, .turns = 1, .used = 1}};
  CHECK(choose_place(std::vector{of_one, of_other}, conversation(3, 40)) == 1);
}

}  // namespace
}  // namespace dspack::runtime::answer_places_test
