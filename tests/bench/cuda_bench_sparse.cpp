// Sparse attention at DeepSeek-V3.2's shapes: the indexer's choice, and attention over it.
#include <fmt/format.h>

#include "tests/bench/cuda_bench.h"

namespace dspack::bench {
namespace {

struct IndexShape {
  uint32_t heads, dim, most;
};

IndexShape index_of(const CudaBench& bench) {
  return {bench.sized<uint32_t>(64, 8), 128, bench.sized<uint32_t>(2048, 16)};
}

kernels::Choice choice_of(Memory& memory, uint32_t rows, uint32_t most) {
  return {.ids = memory.uninitialised(uint64_t{rows} * most * sizeof(uint32_t)),
          .counts = memory.uninitialised(rows * sizeof(uint32_t)),
          .most = most};
}

void measure_choice(CudaBench& bench, Dtype keys, uint32_t rows, uint32_t positions) {
  const IndexShape index = index_of(bench);
  Memory memory = bench.memory();
  const Rotation places(memory, keys, uint64_t{positions} * index.dim, bench.pool_bytes());
  const bool is_fp8 = keys == Dtype::f8_e4m3;
  kernels::ChooseArgs args{.queries = memory.rows(rows, index.heads * index.dim).data,
                           .weights = memory.rows(rows, index.heads).data,
                           .keys = {},
                           .choice = choice_of(memory, rows, index.most),
                           .rows = rows,
                           .heads = index.heads,
                           .first_position = positions - rows};
  args.keys.coding = *kernels::coding_of(keys);
  args.keys.out = positions;
  args.keys.in = index.dim;
  if (is_fp8) {
    args.keys.block_out = 1;
    args.keys.block_in = index.dim;
    args.keys.planes[kernels::kScales] = memory.numbers(Dtype::f32, positions);
  }
  const double seconds = bench.seconds_per_launch(places.places(), [&](uint32_t i) {
    args.keys.planes[kernels::kCodes] = places.at(i);
    bench.queue().choose(args);
  });
  double seen = 0;
  for (uint32_t r = 0; r < rows; ++r)
    seen += positions - r;
  const double key_bytes = index.dim * bits_of(keys) / 8.0 + (is_fp8 ? sizeof(float) : 0);
  bench.print(
      fmt::format("choose {} of {} positions, {} heads, keys {}", index.most, positions, index.heads, to_string(keys)),
      rows, {.bytes = positions * key_bytes, .operations = 2 * seen * index.heads * index.dim}, seconds);
}

/// Positions that lie evenly apart.
void measure_attention_over_choice(CudaBench& bench, Dtype cache, uint32_t rows, uint32_t positions) {
  const IndexShape index = index_of(bench);
  const uint32_t heads = bench.sized<uint32_t>(128, 16);
  constexpr uint32_t kLatent = 512, kRope = 64;
  const uint64_t row_bytes = kernels::cache_row_bytes(cache, {kLatent, kRope});
  Memory memory = bench.memory();
  std::vector<uint32_t> ids(uint64_t{rows} * index.most);
  for (uint64_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<uint32_t>(i % index.most * (positions - rows) / index.most);
  const std::vector<uint32_t> counts(rows, index.most);
  const Rotation caches(memory, cache, positions * row_bytes * 8 / bits_of(cache), bench.pool_bytes());
  kernels::MlaAttendArgs args{.query_latent = memory.rows(rows, heads * kLatent).data,
                              .query_rope = memory.rows(rows, heads * kRope).data,
                              .cache = {},
                              .out = memory.rows(rows, heads * kLatent).data,
                              .rows = rows,
                              .heads = heads,
                              .latent_dim = kLatent,
                              .rope_dim = kRope,
                              .rope_row_stride = heads * kRope,
                              .rope_head_stride = kRope,
                              .first_position = positions - rows,
                              .scale = 0.0722F,  // 1 / sqrt(128 + 64)
                              .cache_dtype = cache};
  args.choice = {.ids = memory.upload(std::as_bytes(std::span(ids))),
                 .counts = memory.upload(std::as_bytes(std::span(counts))),
                 .most = index.most};
  const double seconds = bench.seconds_per_launch(caches.places(), [&](uint32_t i) {
    args.cache = caches.at(i);
    bench.queue().mla_attend(args);
  });
  const double seen = static_cast<double>(rows) * index.most;
  const double vectors = static_cast<double>(rows) * heads;
  bench.print(fmt::format("mla_attend {} heads, {} chosen of {} positions, cache {}", heads, index.most, positions,
                          to_string(cache)),
              rows,
              {.bytes = index.most * static_cast<double>(row_bytes) + 4 * vectors * (2 * kLatent + kRope),
               .operations = 2 * seen * heads * (2 * kLatent + kRope)},
              seconds);
}

}  // namespace

void measure_sparse_attention(CudaBench& bench) {
  const auto prompt = bench.sized<uint32_t>(256, 4);
  for (const Dtype dtype : {Dtype::bf16, Dtype::f8_e4m3}) {
    for (const uint32_t positions : {bench.sized(8192U, 40U), bench.sized(32768U, 70U), bench.sized(131072U, 100U)}) {
      measure_choice(bench, dtype, 1, positions);
      measure_attention_over_choice(bench, dtype, 1, positions);
    }
    measure_choice(bench, dtype, prompt, bench.sized(32768U, 70U));
    measure_attention_over_choice(bench, dtype, prompt, bench.sized(32768U, 70U));
  }
}

}  // namespace dspack::bench
