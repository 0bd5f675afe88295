#include "kernels/cpu/experts.h"

#include <algorithm>
#include <map>

#include "format/base/check.h"
#include "format/base/size.h"

namespace dspack::kernels {
namespace {

// Most rows that an expert multiplies at once, reading its weights from memory once for all of them.
constexpr uint32_t kTileRows = 256;
constexpr uint64_t kAlignment = 64;

/// Offsets in the scratch buffer.
struct Places {
  uint64_t input = 0, gate = 0, up = 0, output = 0, parts = 0, size_bytes = 0;
  uint32_t tile_rows = 0;
};

Places lay_out(const ExpertsShape& shape) {
  Places places;
  // An expert has at most one assignment per token.
  const uint64_t together = std::min<uint64_t>(kMaxRowsTogether, uint64_t{shape.rows} * shape.top_k);
  places.tile_rows = std::min(kTileRows, std::max(shape.rows, static_cast<uint32_t>(together)));
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

void run_grouped_parts(Queue& queue, Products& products, std::span<const ExpertMatrices> experts,
                       const ExpertPartsArgs& args) {
  const uint32_t hidden = args.x.cols;
  const uint32_t inner = experts[0].gate.out;
  const Places at =
      lay_out({.hidden = hidden, .inner = inner, .top_k = args.top_k, .rows = args.x.rows, .parts_only = true});
  const auto rows_at = [&](uint64_t offset, uint32_t first, size_t rows, uint32_t cols) {
    return Rows{.data = args.scratch.at(offset + uint64_t{first} * cols * sizeof(float)),
                .rows = static_cast<uint32_t>(rows),
                .cols = cols,
                .stride = cols};
  };
  std::vector<Products::Product> first_half;
  std::vector<Products::Product> second_half;
  std::vector<uint32_t> done;  // parts, in the order of their rows
  const auto compute = [&] {
    products.multiply(first_half);
    products.multiply(second_half);
    queue.scatter_rows(args.parts, rows_at(at.output, 0, done.size(), hidden), done);
    first_half.clear();
    second_half.clear();
    done.clear();
  };
  for (const ExpertGroup& group : args.groups) {
    const ExpertMatrices& expert = experts[group.entry];
    for (size_t first = 0; first < group.parts.size(); first += at.tile_rows) {
      const auto some = group.parts.subspan(first, std::min<size_t>(at.tile_rows, group.parts.size() - first));
      if (done.size() + some.size() > std::min(at.tile_rows, kMaxRowsTogether) && !done.empty()) compute();
      const auto row = static_cast<uint32_t>(done.size());
      std::vector<uint32_t> tokens;
      for (const uint32_t part : some)
        tokens.push_back(part / args.top_k);
      Rows input = rows_at(at.input, row, some.size(), hidden);
      if (some.size() == 1) {
        input = {.data = args.x.data.at(uint64_t{tokens[0]} * args.x.stride * sizeof(float)),
                 .rows = 1,
                 .cols = hidden,
                 .stride = args.x.stride};
      } else {
        queue.gather_rows(input, args.x, tokens);
      }
      const Rows gated = rows_at(at.gate, row, some.size(), inner);
      first_half.push_back({.weight = expert.gate,
                            .x = input,
                            .y = gated,
                            .up = &expert.up,
                            .scratch = rows_at(at.up, row, some.size(), inner),
                            .limit = expert.limit});
      second_half.push_back({.weight = expert.down, .x = gated, .y = rows_at(at.output, row, some.size(), hidden)});
      done.insert(done.end(), some.begin(), some.end());
    }
  }
  if (!done.empty()) compute();
}

void run_experts_grouped(Queue& queue, Products& products, const CpuExpertTable& table, std::span<const uint32_t> ids,
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
      queue, products, table.all(),
      {.table = &table, .x = args.x, .groups = groups, .top_k = args.top_k, .scratch = args.scratch, .parts = parts});
  queue.combine(args.y, parts, args.weights, args.top_k);
}

}  // namespace dspack::kernels
