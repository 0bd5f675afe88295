// Attention over the latent cache: one or two positions of a decode step, many of a prompt.
#include <fmt/format.h>

#include "tests/bench/cuda_bench_weights.h"

namespace dspack::bench {
namespace {

using kernels::MlaAttendArgs;
using kernels::Slice;

struct Heads {
  uint32_t heads, latent, rope;
  [[nodiscard]] uint32_t key() const { return latent + rope; }
  [[nodiscard]] double row_bytes(Dtype cache) const {
    return static_cast<double>(kernels::cache_row_bytes(cache, {latent, rope}));
  }
  /// Numbers of the cache's type that fill so many rows. Those of FP8 are any bytes, scales as well: none is NaN.
  [[nodiscard]] uint64_t numbers(Dtype cache, uint64_t rows) const {
    return rows * kernels::cache_row_bytes(cache, {latent, rope}) * 8 / bits_of(cache);
  }
};

Heads heads_of(const CudaBench& bench) {
  return {bench.sized<uint32_t>(128, 16), 512, 64};  // the tensor-core kernels are for these widths
}

MlaAttendArgs attend_args(Memory& memory, const Heads& heads, uint32_t rows) {
  return {.query_latent = memory.rows(rows, heads.heads * heads.latent).data,
          .query_rope = memory.rows(rows, heads.heads * heads.rope).data,
          .cache = {},
          .out = memory.rows(rows, heads.heads * heads.latent).data,
          .rows = rows,
          .heads = heads.heads,
          .latent_dim = heads.latent,
          .rope_dim = heads.rope,
          .rope_row_stride = heads.heads * heads.rope,
          .rope_head_stride = heads.rope,
          .scale = 0.0722F};  // 1 / sqrt(128 + 64)
}

/// The last row sees `positions`, the one before it one less.
Work attend_work(const Heads& heads, uint32_t rows, uint32_t positions, Dtype cache) {
  double seen = 0;
  for (uint32_t r = 0; r < rows; ++r)
    seen += positions - r;
  const double vectors = static_cast<double>(rows) * heads.heads;
  return {.bytes = positions * heads.row_bytes(cache) + 4 * vectors * (heads.key() + heads.latent),
          .operations = 2 * seen * heads.heads * (heads.key() + heads.latent)};
}

void measure_decode(CudaBench& bench, Dtype cache, uint32_t positions, uint32_t room) {
  const Heads heads = heads_of(bench);
  for (const uint32_t rows : {1U, 2U}) {
    Memory memory = bench.memory();
    MlaAttendArgs args = attend_args(memory, heads, rows);
    const Rotation caches(memory, cache, heads.numbers(cache, room), bench.pool_bytes());
    const uint32_t first = positions - rows;
    args.cache_dtype = cache;
    args.live = {.value = memory.upload(std::as_bytes(std::span(&first, 1))), .limit = room};
    const double seconds = bench.seconds_per_launch(caches.places(), [&](uint32_t i) {
      args.cache = caches.at(i);
      bench.queue().mla_attend(args);
    });
    bench.print(fmt::format("mla_attend {} heads, {} positions of {}, cache {}", heads.heads, positions, room,
                            to_string(cache)),
                rows, attend_work(heads, rows, positions, cache), seconds);
  }
}

/// A prompt of so many rows with a key and a value of each head, their making included, where this device does that.
void measure_expanded(CudaBench& bench, Dtype cache, uint32_t rows) {
  constexpr uint32_t kNope = 128, kValue = 128;
  const Heads heads = heads_of(bench);
  const uint32_t query = kNope + heads.rope;
  Memory memory = bench.memory();
  const Shape kv_b{"kv_b", heads.heads * (kNope + kValue), heads.latent, Dtype::f8_e4m3};
  const kernels::ExpandedAttendArgs args{
      .kv_b =
          weight_of(kv_b, memory.numbers(kv_b.dtype, uint64_t{kv_b.out} * kv_b.in), scales(memory, kv_b.out, kv_b.in)),
      .queries = memory.rows(rows, heads.heads * query),
      .cache = memory.numbers(cache, heads.numbers(cache, rows)),
      .out = memory.rows(rows, heads.heads * kValue).data,
      .heads = heads.heads,
      .latent_dim = heads.latent,
      .rope_dim = heads.rope,
      .nope_dim = kNope,
      .value_dim = kValue,
      .scale = 0.0722F,
      .cache_dtype = cache};
  const kernels::RopeArgs rope{.data = args.queries.data.at(kNope * sizeof(float)),
                               .rows = rows,
                               .heads = heads.heads,
                               .dim = heads.rope,
                               .head_stride = query,
                               .row_stride = heads.heads * query,
                               .cos_sin = memory.numbers(Dtype::f32, uint64_t{rows} * heads.rope)};
  if (!bench.queue().attend_expanded(rope, args)) return;
  const double seconds =
      bench.seconds_per_launch(1, [&](uint32_t) { (void)bench.queue().attend_expanded(rope, args); });
  const double pairs = 0.5 * rows * (rows + 1.0) * heads.heads;
  bench.print(fmt::format("attend_expanded {} heads, cache {}", heads.heads, to_string(cache)), rows,
              {.bytes = rows * heads.row_bytes(cache) + 4.0 * rows * heads.heads * (query + kValue),
               .operations = 2 * pairs * (query + kValue) + 2 * rows * kv_b.values()},
              seconds);
}

}  // namespace

void measure_decode_attention(CudaBench& bench) {
  constexpr uint32_t kMax = 131072;
  for (const Dtype cache : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3}) {
    if (bench.options().quick) {
      measure_decode(bench, cache, 40, 48);
      continue;
    }
    for (const uint32_t positions : {1024U, 8192U, 32768U, kMax})
      measure_decode(bench, cache, positions, positions);
    measure_decode(bench, cache, 1024, kMax);  // a recorded step is made for all the room that there is
  }
}

void measure_prefill_attention(CudaBench& bench) {
  const Heads heads = heads_of(bench);
  const auto rows = bench.sized<uint32_t>(512, 4);
  for (const Dtype cache : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3}) {
    for (const uint32_t positions : {bench.sized(512U, 8U), bench.sized(4096U, 24U)}) {
      Memory memory = bench.memory();
      MlaAttendArgs args = attend_args(memory, heads, rows);
      args.cache = memory.numbers(cache, heads.numbers(cache, positions));
      args.cache_dtype = cache;
      args.first_position = positions - rows;
      const double seconds = bench.seconds_per_launch(1, [&](uint32_t) { bench.queue().mla_attend(args); });
      bench.print(fmt::format("mla_attend {} heads, prefill up to {} positions, cache {}", heads.heads, positions,
                              to_string(cache)),
                  rows, attend_work(heads, rows, positions, cache), seconds);
    }
    for (const uint32_t prompt : {bench.sized(512U, 8U), bench.sized(4096U, 24U)})
      measure_expanded(bench, cache, prompt);
  }
}

}  // namespace dspack::bench
