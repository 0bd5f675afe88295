#include "kernels/cpu/experts.h"

#include <algorithm>
#include <map>

#include "format/base/check.h"
#include "format/base/checked.h"

namespace dspack::kernels {
namespace {

// That an expert multiplies at once: more would not be faster, and its scratch would not fit a cache.
constexpr uint32_t kTileRows = 64;
constexpr uint64_t kAlignment = 64;

/// Offsets in the scratch buffer.
struct Places {
  uint64_t input = 0, gate = 0, up = 0, output = 0, parts = 0, size_bytes = 0;
};

Places lay_out(const ExpertsShape& shape) {
  Places places;
  const uint64_t tile = std::min(kTileRows, shape.rows);
  const auto add = [&](uint64_t values) {
    const uint64_t at = places.size_bytes;
    places.size_bytes += round_up(values * sizeof(float), kAlignment);
    return at;
  };
  places.input = add(tile * shape.hidden);
  places.gate = add(tile * shape.inner);
  places.up = add(tile * shape.inner);
  places.output = add(tile * shape.hidden);
  places.parts = add(uint64_t{shape.rows} * shape.top_k * shape.hidden);
  return places;
}

}  // namespace

uint64_t grouped_experts_scratch_bytes(const ExpertsShape& shape) {
  return lay_out(shape).size_bytes;
}

void run_experts_grouped(Queue& queue, const CpuExpertTable& table, std::span<const uint32_t> ids,
                         const ExpertsArgs& args) {
  const uint32_t hidden = args.x.cols;
  const uint32_t inner = table[0].gate.out;
  const Places at =
      lay_out({.hidden = hidden, .inner = inner, .experts = table.size(), .top_k = args.top_k, .rows = args.x.rows});
  const auto rows_at = [&](uint64_t offset, size_t rows, uint32_t cols) {
    return Rows{.data = args.scratch.at(offset), .rows = static_cast<uint32_t>(rows), .cols = cols, .stride = cols};
  };
  const Rows parts = rows_at(at.parts, ids.size(), hidden);
  std::map<uint32_t, std::vector<uint32_t>> parts_of;  // by expert: token * top_k + slot
  for (uint32_t part = 0; part < ids.size(); ++part) {
    DSPACK_CHECK(ids[part] < table.size(), "routed to no expert");
    parts_of[ids[part]].push_back(part);
  }
  for (const auto& [expert, all] : parts_of) {
    for (size_t first = 0; first < all.size(); first += kTileRows) {
      const auto some = std::span(all).subspan(first, std::min<size_t>(kTileRows, all.size() - first));
      std::vector<uint32_t> tokens;
      for (const uint32_t part : some)
        tokens.push_back(part / args.top_k);
      const Rows gate = rows_at(at.gate, some.size(), inner);
      const Rows up = rows_at(at.up, some.size(), inner);
      const Rows output = rows_at(at.output, some.size(), hidden);
      queue.gather_rows(rows_at(at.input, some.size(), hidden), args.x, tokens);
      queue.linear(table[expert].gate, rows_at(at.input, some.size(), hidden), gate);
      queue.linear(table[expert].up, rows_at(at.input, some.size(), hidden), up);
      queue.silu_multiply(gate, up);
      queue.linear(table[expert].down, gate, output);
      queue.scatter_rows(parts, output, some);
    }
  }
  queue.combine(args.y, parts, args.weights, args.top_k);
}

}  // namespace dspack::kernels
