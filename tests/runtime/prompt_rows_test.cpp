#include "runtime/generate/prompt_rows.h"

#include <doctest/doctest.h>

namespace dspack::runtime::prompt_rows_test {
namespace {

using Rows = std::vector<uint32_t>;

Rows divided(const Rows& lacking, const PromptShare& pass) {
  return divide_rows(lacking, pass);
}

TEST_CASE("prompt rows: with experts in memory prompts are read one after the other, in efficient passes") {
  const PromptShare pass{.most = 4096, .share = 128, .is_filled = false};
  CHECK(divided({256, 256, 256, 256}, pass) == Rows{128, 0, 0, 0});
  CHECK(divided({128, 256, 256}, pass) == Rows{128, 0, 0});
  // The rest of a prompt is too little for a pass: the next one begins beside it.
  CHECK(divided({28, 256, 256}, pass) == Rows{28, 100, 0});
  CHECK(divided({}, pass).empty());
}

TEST_CASE("prompt rows: a short prompt does not wait for the long one before it") {
  const PromptShare pass{.most = 4096, .share = 128, .is_filled = false};
  CHECK(divided({100'000, 20}, pass) == Rows{128, 20});
  CHECK(divided({100'000, 100'000, 100, 29, 28, 1}, pass) == Rows{128, 0, 100, 0, 28, 0});
  CHECK(divided({100'000, 129}, pass) == Rows{128, 0});
}

TEST_CASE("prompt rows: where experts are read in each pass it is filled, and the short ones are in it") {
  const PromptShare pass{.most = 4096, .share = 2048};
  CHECK(divided({256, 256, 256, 256}, pass) == Rows{256, 256, 256, 256});
  CHECK(divided({100'000}, pass) == Rows{4096});
  CHECK(divided({100'000, 100'000, 300}, pass) == Rows{3796, 0, 300});
  CHECK(divided({3000, 3000}, pass) == Rows{3000, 1096});
}

TEST_CASE("prompt rows: no pass has more rows than there is room for") {
  CHECK(divided({9, 9}, {.most = 0, .share = 128}) == Rows{0, 0});
  CHECK(divided({9, 9}, {.most = 5, .share = 128}) == Rows{5, 0});
  CHECK(divided({9, 9}, {.most = 12, .share = 128}) == Rows{9, 3});
  CHECK(divided({9, 4, 4}, {.most = 12, .share = 9, .is_filled = false}) == Rows{9, 0, 0});
}

TEST_CASE("prompt rows: an efficient pass gives each expert its rows") {
  ModelConfig config;
  CHECK(efficient_rows(config, true) == 32);
  config.experts = 256;
  config.top_k = 8;
  CHECK(efficient_rows(config, true) == 1024);
  CHECK(efficient_rows(config, false) == 2048);
}

}  // namespace
}  // namespace dspack::runtime::prompt_rows_test
