#include "runtime/bench/bench_case.h"

#include <fmt/format.h>

#include <algorithm>

namespace dspack::runtime {

std::string BenchCase::name() const {
  const std::string what = fmt::format("{}{}", kind == Kind::prompt ? "pp" : "tg", tokens);
  return depth == 0 ? what : fmt::format("{} @ d{}", what, depth);
}

// An answer needs something to continue, and its last token is never read.
uint64_t BenchCase::positions() const {
  return kind == Kind::prompt ? uint64_t{depth} + tokens : std::max<uint64_t>(1, depth) + tokens;
}

std::vector<BenchCase> bench_cases(const std::vector<uint32_t>& prompts, const std::vector<uint32_t>& answers,
                                   const std::vector<uint32_t>& depths) {
  std::vector<BenchCase> cases;
  for (const uint32_t depth : depths) {
    for (const uint32_t tokens : prompts) {
      if (tokens > 0) cases.push_back({.kind = BenchCase::Kind::prompt, .tokens = tokens, .depth = depth});
    }
    for (const uint32_t tokens : answers) {
      if (tokens > 0) cases.push_back({.kind = BenchCase::Kind::answer, .tokens = tokens, .depth = depth});
    }
  }
  return cases;
}

}  // namespace dspack::runtime
