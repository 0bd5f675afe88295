// What `dsrun bench` measures: reading tokens of a prompt, or speaking tokens of an answer, after others.
// Threads: plain values. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dspack::runtime {

struct BenchCase {
  enum class Kind { prompt, answer };
  Kind kind = Kind::prompt;
  uint32_t tokens = 0;  // read at once, or spoken one after the other; at least one
  uint32_t depth = 0;   // positions that the sequence holds before

  /// As llama-bench calls them: "pp512", "tg128 @ d1024".
  [[nodiscard]] std::string name() const;
  /// Positions that it takes in all.
  [[nodiscard]] uint64_t positions() const;
};

/// Every number of tokens after every depth; zeros are left out.
[[nodiscard]] std::vector<BenchCase> bench_cases(const std::vector<uint32_t>& prompts,
                                                 const std::vector<uint32_t>& answers,
                                                 const std::vector<uint32_t>& depths);

}  // namespace dspack::runtime
