#include "kernels/cpu/experts.h"

#include <algorithm>
#include <map>

#include "format/base/check.h"
#include "format/base/size.h"

namespace dspack::kernels {
namespace {

// That an expert multiplies at once, so that its weights are read from memory once for so many rows.
constexpr uint32_t kTileRows = 256;
constexpr uint64_t kAlignment = 64;

/// Offsets in the scratch buffer.
struct Places {
  uint64_t input = 0, gate = 0, up = 0, output = 0, parts = 0, size_bytes = 0;
  uint32_t tile_rows = 0;
};

Places lay_out(const ExpertsShape& shape) {
  Places places;
  // Assignments of one expert are at most one a token.
  places.tile_rows = std::min(kTileRows, shape.rows);
  const uint64_t tile = places.tile_rows;
  const auto add = [&](uint64_t values) {
    const uint64_t at = places.size_bytes;
    places.size_bytes += round_up(values * sizeof(float), kAlignment);
    return at;
  };
  places.input = add(tile * shape.hidden);
  places.gate = add(tile * shape.inner);
  places.up = add(tile * shape.inner);
  places.output = add(tile * shape.hidden);
  places.parts = add(shape.parts_only ? 0 : uint64_t{shape.rows} * shape.top_k * shape.hidden);
  return places;
}

}  // namespace

uint64_t grouped_experts_scratch_bytes(const ExpertsShape& shape) {
  return lay_out(shape).size_bytes;
}

void run_grouped_parts(Queue& queue, std::span<const ExpertMatrices> experts, const ExpertPartsArgs& args) {
  const uint32_t hidden = args.x.cols;
  const uint32_t inner = experts[0].gate.out;
  const Places at =
      lay_out({.hidden = hidden, .inner = inner, .top_k = args.top_k, .rows = args.x.rows, .parts_only = true});
  const auto rows_at = [&](uint64_t offset, size_t rows, uint32_t cols) {
    return Rows{.data = args.scratch.at(offset), .rows = static_cast<uint32_t>(rows), .cols = cols, .stride = cols};
  };
  for (const ExpertGroup& group : args.groups) {
    const ExpertMatrices& expert = experts[group.entry];
    for (size_t first = 0; first < group.parts.size(); first += at.tile_rows) {
      const auto some = group.parts.subspan(first, std::min<size_t>(at.tile_rows, group.parts.size() - first));
      std::vector<uint32_t> tokens;
      for (const uint32_t part : some)
        tokens.push_back(part / args.top_k);
      const Rows gate = rows_at(at.gate, some.size(), inner);
      const Rows up = rows_at(at.up, some.size(), inner);
      const Rows output = rows_at(at.output, some.size(), hidden);
      queue.gather_rows(rows_at(at.input, some.size(), hidden), args.x, tokens);
      queue.gated_linear(expert.gate, expert.up, rows_at(at.input, some.size(), hidden), gate, up);
      queue.linear(expert.down, gate, output);
      queue.scatter_rows(args.parts, output, some);
    }
  }
}

void run_experts_grouped(Queue& queue, const CpuExpertTable& table, std::span<const uint32_t> ids,
                         const ExpertsArgs& args) {
  const uint32_t hidden = args.x.cols;
  const Places at = lay_out({.hidden = hidden,
                             .inner = table[0].gate.out,
                             .experts = table.size(),
                             .top_k = args.top_k,
                             .rows = args.x.rows});
  std::map<uint32_t, std::vector<uint32_t>> parts_of;  // by expert: token * top_k + slot
  for (uint32_t part = 0; part < ids.size(); ++part) {
    DSPACK_CHECK(ids[part] < table.size(), "routed to no expert");
    parts_of[ids[part]].push_back(part);
  }
  std::vector<ExpertGroup> groups;
  for (const auto& [expert, parts] : parts_of)
    groups.push_back({.entry = expert, .parts = parts});
  const Rows parts{
      .data = args.scratch.at(at.parts), .rows = static_cast<uint32_t>(ids.size()), .cols = hidden, .stride = hidden};
  run_grouped_parts(
      queue, table.all(),
      {.table = &table, .x = args.x, .groups = groups, .top_k = args.top_k, .scratch = args.scratch, .parts = parts});
  queue.combine(args.y, parts, args.weights, args.top_k);
}

}  // namespace dspack::kernels
