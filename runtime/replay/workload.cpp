#include "runtime/replay/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace dspack::runtime {

namespace {

// 1 GiB of demands; some 140,000 tokens of V3.
constexpr size_t kMaxDemands = 1ULL << 26U;

}  // namespace

std::vector<ExpertDemand> demands_of(std::span<const uint32_t> ids, uint32_t top_k, uint32_t draft_rows) {
  const auto rows = static_cast<uint32_t>(ids.size() / top_k);
  std::vector<ExpertDemand> demands;
  std::unordered_map<uint32_t, size_t> place;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto row = static_cast<uint32_t>(i / top_k);
    const auto [at, is_new] = place.try_emplace(ids[i], demands.size());
    if (is_new) demands.push_back({.expert = ExpertId(ids[i]), .rows = 0, .is_draft = row >= rows - draft_rows});
    ExpertDemand& demand = demands[at->second];
    ++demand.rows;
    demand.last_row = rows - 1 - row;
  }
  return demands;
}

Result<Workload> Workload::read(RouteReader reader) {
  Workload workload(reader.header());
  for (;;) {
    TRY_ASSIGN(const std::optional<RouteLine> line, reader.next());
    if (!line) return workload;
    TRY(workload.add(*line));
  }
}

Result<void> Workload::add(const RouteLine& line) {
  if (demands_.size() > kMaxDemands) {
    return Error{ErrorKind::budget, fmt::format("more than {} demands; replay a shorter trace", kMaxDemands)};
  }
  if (const auto* accepted = std::get_if<AcceptedDrafts>(&line)) {
    accept(accepted->rows);
    return {};
  }
  const auto& routed = std::get<RoutedLayer>(line);
  if (routed.pass + 1 != passes_ || steps_.empty()) {
    passes_ = routed.pass + 1;
    drafted_.clear();
    const uint64_t rows = routed.ids.size() / header_.top_k;
    tokens_[static_cast<size_t>(routed.phase)] += rows - std::min<uint64_t>(rows, routed.draft_rows);
  }
  const std::vector<ExpertDemand> demands = demands_of(routed.ids, header_.top_k, routed.draft_rows);
  if (routed.phase == Phase::decode) floor_ = std::max(floor_, static_cast<uint32_t>(demands.size()));
  append(routed, demands, false);
  if (routed.draft_rows > 0) drafted_.push_back(routed);
  return {};
}

void Workload::append(const RoutedLayer& routed, std::span<const ExpertDemand> demands, bool accepted) {
  steps_.push_back({.pass = routed.pass,
                    .phase = routed.phase,
                    .layer = routed.layer,
                    .accepted = accepted,
                    .first = demands_.size(),
                    .count = static_cast<uint32_t>(demands.size())});
  demands_.insert(demands_.end(), demands.begin(), demands.end());
}

// Those experts of the rows that stood which only drafted rows had asked for.
void Workload::accept(uint32_t rows) {
  if (drafted_.empty()) return;
  tokens_[static_cast<size_t>(drafted_.front().phase)] += rows;
  for (const RoutedLayer& routed : drafted_) {
    const size_t kept = routed.ids.size() - size_t{routed.draft_rows - rows} * header_.top_k;
    std::vector<ExpertDemand> demands = demands_of(std::span(routed.ids).first(kept), header_.top_k, rows);
    std::erase_if(demands, [](const ExpertDemand& demand) { return !demand.is_draft; });
    for (ExpertDemand& demand : demands)
      demand.is_draft = false;
    append(routed, demands, true);
  }
  drafted_.clear();
}

uint64_t Workload::experts() const {
  uint64_t sum = 0;
  for (const RoutedLayerShape& layer : header_.layers)
    sum += layer.experts;
  return sum;
}

uint64_t Workload::expert_bytes() const {
  return std::ranges::max(header_.layers, {}, &RoutedLayerShape::expert_bytes).expert_bytes;
}

}  // namespace dspack::runtime
