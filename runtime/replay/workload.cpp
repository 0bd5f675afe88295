#include "runtime/replay/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace dspack::runtime {

namespace {

// 1 GiB of demands; some 140,000 tokens of V3.
constexpr size_t kMaxDemands = 1ULL << 26U;

}  // namespace

std::vector<ExpertDemand> demands_of(std::span<const uint32_t> ids, uint32_t top_k) {
  std::vector<ExpertDemand> demands;
  std::unordered_map<uint32_t, size_t> places;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto row = static_cast<uint32_t>(i / top_k);
    const auto [place, is_new] = places.try_emplace(ids[i], demands.size());
    if (is_new) demands.push_back({.expert = ExpertId(ids[i]), .rows = 0, .first_row = row});
    ++demands[place->second].rows;
    demands[place->second].last_row = row;
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
  const std::vector<ExpertDemand> demands = demands_of(routed.ids, header_.top_k);
  if (routed.phase == Phase::decode) floor_ = std::max(floor_, static_cast<uint32_t>(demands.size()));
  append(routed, demands);
  experts_.emplace(routed.layer, header_.find(routed.layer)->experts);
  if (routed.draft_rows > 0) drafted_.push_back(routed);
  return {};
}

Workload::Step& Workload::append(const RoutedLayer& routed, std::span<const ExpertDemand> demands) {
  steps_.push_back({.pass = routed.pass,
                    .phase = routed.phase,
                    .layer = routed.layer,
                    .rows = static_cast<uint32_t>(routed.ids.size() / header_.top_k),
                    .draft_rows = routed.draft_rows,
                    .first = demands_.size(),
                    .count = static_cast<uint32_t>(demands.size())});
  demands_.insert(demands_.end(), demands.begin(), demands.end());
  return steps_.back();
}

// Appends the experts of the accepted rows that only drafted rows had requested.
void Workload::accept(uint32_t rows) {
  if (drafted_.empty()) return;
  tokens_[static_cast<size_t>(drafted_.front().phase)] += rows;
  for (const RoutedLayer& routed : drafted_) {
    const auto all = static_cast<uint32_t>(routed.ids.size() / header_.top_k);
    const uint32_t first_draft = all - std::min(all, routed.draft_rows);
    std::vector<ExpertDemand> demands = demands_of(routed.ids, header_.top_k);
    std::erase_if(demands, [&](const ExpertDemand& demand) {
      return demand.first_row < first_draft || demand.first_row - first_draft >= rows;
    });
    Step& step = append(routed, demands);
    step.accepted = true;
    step.draft_rows = 0;
  }
  drafted_.clear();
}

ExpertUse Workload::use_of(const Step& step, const ExpertDemand& demand) {
  return {.key = {step.layer, demand.expert},
          .pass = step.pass,
          .phase = step.phase,
          .rows = demand.rows,
          .last_row = step.rows - 1 - demand.last_row,
          .is_draft = step.draft_rows > 0 && demand.first_row + step.draft_rows >= step.rows};
}

uint64_t Workload::experts() const {
  uint64_t sum = 0;
  for (const auto& [layer, experts] : experts_)
    sum += experts;
  return sum;
}

uint64_t Workload::expert_bytes() const {
  uint64_t bytes = 1;
  for (const RoutedLayerShape& shape : header_.layers) {
    if (experts_.contains(shape.layer)) bytes = std::max(bytes, shape.expert_bytes);
  }
  return bytes;
}

}  // namespace dspack::runtime
