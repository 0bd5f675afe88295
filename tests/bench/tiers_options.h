// The command line of bench_tiers.
// Threads: plain values. Errors: wrong usage ends the program with status 2.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/load_cuda.h"
#include "runtime/experts/prefetch_governor.h"
#include "runtime/experts/schedule.h"
#include "tests/bench/tiers_experts.h"

namespace dspack::bench {

struct TierBenchOptions {
  std::string library = {};
  kernels::CudaOptions cuda = {};
  bool is_cpu = false;  // no GPU: the CPU plays one that copies nothing beside its work, to try the program
  ModelShape shape;
  uint32_t layers = 0;              // 0: up to four, as memory allows
  std::vector<double> vram, ram;    // shares of all experts; RAM of 1: what is not in device memory is there
  std::filesystem::path disk = {};  // folder; empty: no disk is measured
  uint64_t disk_experts = 256;      // that are written
  std::vector<runtime::MissMode> miss;
  std::vector<runtime::PrefetchMode> prefetch;
  const RouteProfile* profile = nullptr;
  uint32_t tokens = 64, warm_tokens = 96, rounds = 3, prompt = 512;
  double attention_us = 100;
  double forecast_right = 0.85;
  unsigned threads = 0;
  bool quick = false;
  std::vector<std::string> sections = {"decode", "prefill"};

  [[nodiscard]] bool wants(std::string_view section) const;
};

[[nodiscard]] TierBenchOptions parse_tier_options(int argc, char** argv);

}  // namespace dspack::bench
