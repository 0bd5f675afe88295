#include "tests/bench/tiers_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace dspack::bench {
namespace {

template <class Value>
double median_of(const std::vector<Round>& rounds, Value&& value) {
  std::vector<double> values;
  for (const Round& round : rounds)
    values.push_back(static_cast<double>(value(round)));
  return median(std::move(values));
}

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}", 100 * part / whole) : "-";
}

std::string words_of(const ModelShape& shape, const TierCase& what) {
  const auto share = [&](uint64_t slots) {
    return 100 * static_cast<double>(slots) / static_cast<double>(shape.experts());
  };
  return fmt::format("{:>4.0f} | {:>4.0f} | {:<7} | {:<4}", share(what.vram), share(what.ram), to_string(what.miss),
                     to_string(what.prefetch));
}

std::string span_of(const std::vector<Round>& rounds, double scale) {
  const auto [low, high] = std::ranges::minmax(rounds, {}, &Round::seconds);
  return fmt::format("{:.3f} to {:.3f}", scale * low.seconds, scale * high.seconds);
}

}  // namespace

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void print_decode_heading() {
  fmt::print(
      "\n{:>4} | {:>4} | {:<7} | {:<4} | {:>9} | {:>18} | {:>9} | {:>5} | {:>6} | {:>6} | {:>6} | {:>8} | {:>8} | "
      "{:>8} | {:>8} | {:>8} | {:>9} | {:>9} | {:>9} | {:>8}\n",
      "VRAM", "RAM", "miss", "pre", "ms/token", "low to high", "bound, ms", "ratio", "hits %", "late %", "RAM %",
      "copies/t", "by CPU/t", "disk/t", "back/t", "MB up/t", "of link %", "CPU, GB/s", "wait ms/t", "wasted %");
}

double print_decode(const ModelShape& shape, const TierCase& what, const std::vector<Round>& rounds, uint32_t tokens,
                    const TierRates& rates) {
  const double ms = 1e3 / tokens;
  const auto of = [&](auto&& value) { return median_of(rounds, value); };
  const auto a_token = [&](auto&& value) { return of(value) / tokens; };
  const auto demands = [](const Round& r) { return r.vram.hits + r.vram.late + r.vram.missed; };
  const auto asked = [](const Round& r) { return r.ram.hits + r.ram.late + r.ram.all_misses(); };
  const auto up = [](const Round& r) { return r.vram.moved_bytes + r.vram.promoted_bytes + r.vram.prefetched_bytes; };
  const double ratio = of([](const Round& r) { return r.over_bound(); });
  fmt::print(
      "{} | {:>9.3f} | {:>18} | {:>9.3f} | {:>5.3f} | {:>6} | {:>6} | {:>6} | {:>8.2f} | {:>8.2f} | {:>8.2f} | "
      "{:>8.2f} | "
      "{:>8.1f} | {:>9} | {:>9.2f} | {:>9.3f} | {:>8}\n",
      words_of(shape, what), ms * of([](const Round& r) { return r.seconds; }), span_of(rounds, ms),
      ms * of([](const Round& r) { return r.bound.seconds(r.seconds); }), ratio,
      percent(of([](const Round& r) { return r.vram.hits; }), of(demands)),
      percent(of([](const Round& r) { return r.vram.late; }), of(demands)),
      percent(of([](const Round& r) { return r.ram.hits + r.ram.late; }), of(asked)),
      a_token([](const Round& r) { return r.vram.moved; }), a_token([](const Round& r) { return r.vram.computed; }),
      a_token([](const Round& r) { return r.ram.all_misses(); }),
      a_token([](const Round& r) { return r.vram.returned; }), 1e-6 * a_token(up),
      percent(of([](const Round& r) { return r.vram.moved_bytes; }),
              rates.link * of([](const Round& r) { return r.bound.transfer_seconds(); })),
      of([](const Round& r) { return 1e-9 * r.cpu_rate; }),
      ms * of([](const Round& r) { return r.vram.waiting_seconds; }),
      percent(of([](const Round& r) { return r.vram.wasted_bytes; }),
              of([](const Round& r) { return r.vram.prefetched_bytes; })));
  (void)std::fflush(stdout);
  return ratio;
}

void print_prefill_heading() {
  fmt::print("\n{:>4} | {:>4} | {:<7} | {:<4} | {:>9} | {:>18} | {:>11} | {:>9} | {:>9} | {:>9} | {:>5}\n", "VRAM",
             "RAM", "miss", "pre", "prompt, ms", "low to high", "compute, ms", "link, ms", "disk, ms", "limit, ms",
             "ratio");
}

double print_prefill(const ModelShape& shape, const TierCase& what, const std::vector<Round>& rounds, double compute,
                     const TierRates& rates) {
  const auto limit = [&](const Round& r) { return PrefillLimit(compute, r, rates); };
  const double ratio = median_of(rounds, [&](const Round& r) { return r.seconds / limit(r).seconds(); });
  fmt::print("{} | {:>10.1f} | {:>18} | {:>11.1f} | {:>9.1f} | {:>9.1f} | {:>9.1f} | {:>5.3f}\n", words_of(shape, what),
             1e3 * median_of(rounds, [](const Round& r) { return r.seconds; }), span_of(rounds, 1e3), 1e3 * compute,
             1e3 * median_of(rounds, [&](const Round& r) { return limit(r).link; }),
             1e3 * median_of(rounds, [&](const Round& r) { return limit(r).disk; }),
             1e3 * median_of(rounds, [&](const Round& r) { return limit(r).seconds(); }), ratio);
  (void)std::fflush(stdout);
  return ratio;
}

}  // namespace dspack::bench
