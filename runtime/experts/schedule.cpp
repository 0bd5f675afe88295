#include "runtime/experts/schedule.h"

#include <algorithm>
#include <iterator>

namespace dspack::runtime {

namespace {

// Weight of the newest measurement: a machine's rates change slowly, single measurements scatter.
constexpr double kNewest = 0.2;

}  // namespace

double layer_seconds(const LayerWork& work) {
  return std::max({std::max(work.hits, work.transfer) + work.last, work.host, work.others});
}

LayerWork work_of(const ExpertTimes& times) {
  return {.hits = times.hits,
          .transfer = times.transfer,
          .last = times.last_miss,
          .host = times.host,
          .others = times.others};
}

void DecodeBound::add(const ExpertTimes& layer) {
  experts_ += layer.total;
  compute_ += layer.hits + layer.misses;
  transfer_ += layer.transfer;
  host_ += layer.host;
  bound_ += layer_seconds(work_of(layer));
}

DecodeBound DecodeBound::since(const DecodeBound& earlier) const {
  DecodeBound rest = *this;
  rest.experts_ -= earlier.experts_;
  rest.compute_ -= earlier.compute_;
  rest.transfer_ -= earlier.transfer_;
  rest.host_ -= earlier.host_;
  rest.bound_ -= earlier.bound_;
  return rest;
}

double DecodeBound::with_foresight(double seconds) const {
  return std::max({outside(seconds) + compute_, transfer_, host_});
}

double DecodeBound::outside(double seconds) const {
  return std::max(0.0, seconds - experts_);
}

std::string_view to_string(MissMode mode) {
  switch (mode) {
    case MissMode::move: return "move";
    case MissMode::compute: return "compute";
    case MissMode::automatic: return "auto";
  }
  return "";
}

void WorkRate::learn(uint64_t bytes, uint32_t rows, double seconds) {
  if (bytes == 0 || seconds <= 0) return;
  const double now = seconds / static_cast<double>(bytes);
  double& known = per_byte_[std::clamp(rows, 1U, kMaxRows) - 1];
  known = known == 0 ? now : known + kNewest * (now - known);
}

std::optional<double> WorkRate::seconds(uint64_t bytes, uint32_t rows) const {
  const auto known = [](double per_byte) { return per_byte > 0; };
  const auto larger = per_byte_.begin() + std::clamp(rows, 1U, kMaxRows);
  const auto smaller = std::find_if(std::make_reverse_iterator(larger), per_byte_.rend(), known);
  if (smaller != per_byte_.rend()) return *smaller * static_cast<double>(bytes);
  const auto nearest = std::find_if(larger, per_byte_.end(), known);
  if (nearest == per_byte_.end()) return std::nullopt;
  return *nearest * static_cast<double>(bytes);
}

size_t soonest(std::span<const Eta> etas) {
  std::optional<size_t> best;
  for (size_t i = 0; i < etas.size(); ++i) {
    const Eta& eta = etas[i];
    if (eta.kind == Eta::Kind::never) continue;
    if (eta.kind != Eta::Kind::known) return i;
    if (!best || eta.seconds < etas[*best].seconds) best = i;
  }
  return best.value_or(0);
}

}  // namespace dspack::runtime
