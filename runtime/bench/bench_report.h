// The report of a benchmark, for people and for programs.
// Threads: plain values. Errors: none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/json.h"
#include "runtime/bench/bench.h"

namespace dspack::runtime {

struct BenchReport {
  std::string model;         // as the user called it
  uint64_t model_bytes = 0;  // size of its tensors
  std::string device;
  kernels::Precision precision = kernels::Precision::exact;
  uint64_t context = 0;
  uint64_t experts = 0, slots = 0;  // in the model; in memory at most
  std::string drafting;             // empty: none
  std::string text;                 // description of the text that was read
  MachineLimits limits;
  std::optional<double> core_share;  // share of the processor time that was wanted (core_share.h)
  std::vector<BenchResult> results;
};

/// Three tables in Markdown: tokens/s beside the floor, what a token needs, and where the time went.
[[nodiscard]] std::string to_markdown(const BenchReport& report);
[[nodiscard]] format::Json to_json(const BenchReport& report);

}  // namespace dspack::runtime
