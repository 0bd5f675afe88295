#include "runtime/cli/token_progress.h"

#include <doctest/doctest.h>

namespace dspack::runtime::token_progress_test {
namespace {

TEST_CASE("token progress: rate, time left and what else there is to say") {
  CHECK(token_progress_line("scoring", 100, 400, 10, "perplexity 3.2") ==
        "scoring: 100 of 400 tokens, 10.0 tokens/s, 30 s left, perplexity 3.2");
  CHECK(token_progress_line("scoring", 400, 400, 10, "") == "scoring: 400 of 400 tokens, 40.0 tokens/s");
  CHECK(token_progress_line("scoring", 0, 400, 0, "") == "scoring: 0 of 400 tokens, 0.0 tokens/s");
}

}  // namespace
}  // namespace dspack::runtime::token_progress_test
