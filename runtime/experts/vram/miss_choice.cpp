#include "runtime/experts/vram/miss_choice.h"

#include <algorithm>
#include <iterator>

namespace dspack::runtime {

namespace {

// Of the newest measurement: a machine's rates change slowly, single measurements scatter.
constexpr double kWeight = 0.2;

void learn(double& seconds_per_byte, uint64_t bytes, double seconds) {
  if (bytes == 0 || seconds <= 0) return;
  const double now = seconds / static_cast<double>(bytes);
  seconds_per_byte = seconds_per_byte == 0 ? now : seconds_per_byte + kWeight * (now - seconds_per_byte);
}

}  // namespace

std::string_view to_string(MissMode mode) {
  switch (mode) {
    case MissMode::move: return "move";
    case MissMode::compute: return "compute";
    default: return "auto";
  }
}

void MissRates::moved(uint64_t bytes, double seconds) {
  learn(link_, bytes, seconds);
}

void MissRates::computed(uint64_t bytes, uint32_t rows, double seconds) {
  learn(cpu_[std::clamp(rows, 1U, kMostRows) - 1], bytes, seconds);
}

std::optional<double> MissRates::move_seconds(uint64_t bytes) const {
  if (link_ == 0) return std::nullopt;
  return link_ * static_cast<double>(bytes);
}

std::optional<double> MissRates::compute_seconds(uint64_t bytes, uint32_t rows) const {
  const auto known = [](double seconds_per_byte) { return seconds_per_byte > 0; };
  const auto larger = cpu_.begin() + std::clamp(rows, 1U, kMostRows);
  const auto smaller = std::find_if(std::make_reverse_iterator(larger), cpu_.rend(), known);
  if (smaller != cpu_.rend()) return *smaller * static_cast<double>(bytes);
  const auto nearest = std::find_if(larger, cpu_.end(), known);
  if (nearest == cpu_.end()) return std::nullopt;
  return *nearest * static_cast<double>(bytes);
}

MissWay choose_miss_way(const MissOptions& options, const MissRates& rates, const MissBacklog& backlog, uint64_t bytes,
                        uint32_t rows) {
  if (options.mode == MissMode::compute) return MissWay::compute;
  if (options.mode == MissMode::move || options.is_deterministic) return MissWay::move;
  // What is unknown is tried once, the link first.
  const auto move = rates.move_seconds(bytes);
  if (!move) return MissWay::move;
  const auto compute = rates.compute_seconds(bytes, rows);
  if (!compute) return MissWay::compute;
  return backlog.cpu + *compute < backlog.link + *move ? MissWay::compute : MissWay::move;
}

}  // namespace dspack::runtime
