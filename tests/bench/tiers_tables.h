// The tables of bench_tiers: a row a case, medians of its rounds.
// Threads: one. Errors: none.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/bench/tiers_run.h"

namespace dspack::bench {

/// Measured at the start, nothing else running; bytes a second.
struct TierRates {
  double link = 0;
  double disk = 0;  // 0: none was measured
};

[[nodiscard]] double median(std::vector<double> values);

/// What a prompt cannot do without, seconds.
struct PrefillLimit {
  double compute = 0, link = 0, disk = 0;
  PrefillLimit(double compute_seconds, const Round& round, const TierRates& rates)
      : compute(compute_seconds),
        link(static_cast<double>(round.vram.moved_bytes) / rates.link),
        disk(rates.disk > 0 ? static_cast<double>(round.ram.bytes[0]) / rates.disk : 0) {}
  [[nodiscard]] double seconds() const { return std::max({compute, link, disk}); }
};

/// Both print a row and return the median of measured / limit.
double print_decode(const ModelShape& shape, const TierCase& what, const std::vector<Round>& rounds, uint32_t tokens,
                    const TierRates& rates);
double print_prefill(const ModelShape& shape, const TierCase& what, const std::vector<Round>& rounds, double compute,
                     const TierRates& rates);
void print_decode_heading();
void print_prefill_heading();

}  // namespace dspack::bench
