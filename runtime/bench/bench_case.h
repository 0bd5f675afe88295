// A case of `dsrun bench`: reading tokens of a prompt, or generating tokens of an answer, after others.
// Threads: plain values. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dspack::runtime {

struct BenchCase {
  enum class Kind { prompt, answer };
  Kind kind = Kind::prompt;
  uint32_t tokens = 0;  // read at once, or generated one by one; at least one
  uint32_t depth = 0;   // positions that the sequence holds before

  /// The name in llama-bench's notation: "pp512", "tg128 @ d1024".
  [[nodiscard]] std::string name() const;
  /// Positions that it needs in total.
  [[nodiscard]] uint64_t positions() const;
};

/// All combinations of tokens and depths, except for zero tokens.
[[nodiscard]] std::vector<BenchCase> bench_cases(const std::vector<uint32_t>& prompts,
                                                 const std::vector<uint32_t>& answers,
                                                 const std::vector<uint32_t>& depths);

}  // namespace dspack::runtime
