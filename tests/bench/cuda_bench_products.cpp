// Products of weights with activations: matrix-vector products, a layer's routed experts, prefill.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/bench/cuda_bench_weights.h"

namespace dspack::bench {
namespace {

using kernels::Rows;
using kernels::Slice;
using kernels::Weight;

// DeepSeek-V3.
constexpr Shape kDecodeShapes[] = {{"q_a", 1536, 7168, Dtype::f8_e4m3},
                                   {"q_b", 24576, 1536, Dtype::f8_e4m3},
                                   {"kv_a", 576, 7168, Dtype::f8_e4m3},
                                   {"o", 7168, 16384, Dtype::f8_e4m3},
                                   {"dense gate, up", 18432, 7168, Dtype::f8_e4m3},
                                   {"dense down", 7168, 18432, Dtype::f8_e4m3},
                                   {"shared gate, up", 2048, 7168, Dtype::f8_e4m3},
                                   {"shared down", 7168, 2048, Dtype::f8_e4m3},
                                   {"o", 7168, 16384, Dtype::bf16},
                                   {"head", 129280, 7168, Dtype::bf16}};
constexpr Shape kQuickShapes[] = {{"quick", 160, 256, Dtype::f8_e4m3}, {"quick", 96, 256, Dtype::bf16}};
constexpr Shape kPrefillShapes[] = {{"q_b", 24576, 1536, Dtype::f8_e4m3},
                                    {"o", 7168, 16384, Dtype::f8_e4m3},
                                    {"dense gate, up", 18432, 7168, Dtype::f8_e4m3},
                                    {"dense down", 7168, 18432, Dtype::f8_e4m3},
                                    {"o", 7168, 16384, Dtype::bf16}};

std::vector<uint32_t> decode_rows(const CudaBench& bench) {
  return bench.options().quick ? std::vector<uint32_t>{1, 3} : bench.options().rows;
}

std::string name_of(const char* operation, const Shape& shape) {
  return fmt::format("{} {} [{}, {}] {}", operation, shape.name, shape.out, shape.in, to_string(shape.dtype));
}

/// linear() of one shape for several numbers of rows.
void measure_linear(CudaBench& bench, const Shape& shape, std::span<const uint32_t> row_counts,
                    const char* name = "linear") {
  Memory memory = bench.memory();
  const Rotation weights(memory, shape.dtype, uint64_t{shape.out} * shape.in, bench.pool_bytes());
  const Slice scale = scales(memory, shape.out, shape.in);
  const uint32_t most = *std::ranges::max_element(row_counts);
  Rows x = memory.rows(most, shape.in), y = memory.rows(most, shape.out);
  for (const uint32_t rows : row_counts) {
    x.rows = y.rows = rows;
    const double seconds = bench.seconds_per_launch(
        weights.places(), [&](uint32_t i) { bench.queue().linear(weight_of(shape, weights.at(i), scale), x, y); });
    const double activations = 4.0 * rows * (static_cast<double>(shape.in) + shape.out);
    bench.print(name_of(name, shape), rows,
                {.bytes = shape.bytes() + activations, .operations = 2 * rows * shape.values()}, seconds);
  }
}

/// Absorbed kv_b_proj: both operations, each with its half of the matrix.
void measure_head_linear(CudaBench& bench, uint32_t rows) {
  const auto heads = bench.sized<uint32_t>(128, 4), latent = bench.sized<uint32_t>(512, 64),
             half = bench.sized<uint32_t>(128, 16);
  const Shape shape{"kv_b", heads * 2 * half, latent, Dtype::f8_e4m3};
  Memory memory = bench.memory();
  const Rotation weights(memory, shape.dtype, uint64_t{shape.out} * shape.in, bench.pool_bytes());
  const Slice scale = scales(memory, shape.out, shape.in);
  const Slice narrow = memory.rows(rows, heads * half).data, wide = memory.rows(rows, heads * latent).data;
  kernels::HeadLinearArgs absorb{.weight = {},
                                 .heads = heads,
                                 .head_rows = 2 * half,
                                 .first_row = 0,
                                 .rows_used = half,
                                 .x = narrow,
                                 .x_row_stride = heads * half,
                                 .x_head_stride = half,
                                 .y = wide,
                                 .y_row_stride = heads * latent,
                                 .y_head_stride = latent,
                                 .rows = rows};
  kernels::HeadLinearArgs project = absorb;
  project.first_row = half;
  std::swap(project.x, project.y);
  std::swap(project.x_row_stride, project.y_row_stride);
  std::swap(project.x_head_stride, project.y_head_stride);
  const double values = static_cast<double>(heads) * half * latent;
  const Work work{.bytes = values + 4.0 * rows * heads * (half + latent), .operations = 2 * rows * values};
  bench.print(name_of("head_linear_transposed", shape), rows, work,
              bench.seconds_per_launch(weights.places(), [&](uint32_t i) {
                absorb.weight = weight_of(shape, weights.at(i), scale);
                bench.queue().head_linear_transposed(absorb);
              }));
  bench.print(name_of("head_linear", shape), rows, work, bench.seconds_per_launch(weights.places(), [&](uint32_t i) {
    project.weight = weight_of(shape, weights.at(i), scale);
    bench.queue().head_linear(project);
  }));
}

/// Experts of several calls, drawn evenly, those of one token all different.
struct Routes {
  std::vector<uint32_t> ids;    // [calls, tokens, top_k]
  double experts_per_call = 0;  // different ones, mean
};

Routes draw_routes(uint32_t calls, uint32_t tokens, uint32_t top_k, uint32_t experts) {
  std::mt19937 random(1);
  std::vector<uint32_t> all(experts);
  std::iota(all.begin(), all.end(), 0U);
  Routes routes;
  for (uint32_t call = 0; call < calls; ++call) {
    std::set<uint32_t> different;
    for (uint32_t token = 0; token < tokens; ++token) {
      std::ranges::shuffle(all, random);
      routes.ids.insert(routes.ids.end(), all.begin(), all.begin() + top_k);
      different.insert(all.begin(), all.begin() + top_k);
    }
    routes.experts_per_call += static_cast<double>(different.size()) / calls;
  }
  return routes;
}

/// In a recorded step, as decode passes are; a prompt's are not.
void measure_layer(CudaBench& bench, const RoutedExperts& layer, uint32_t tokens, bool is_prompt = false,
                   const char* name = "run_experts") {
  const uint32_t calls = is_prompt ? 4 : 64;
  const auto top_k = bench.sized<uint32_t>(8, 2);
  const Routes routes = draw_routes(calls, tokens, top_k, layer.count());
  Memory memory = bench.memory();
  const Slice ids = memory.upload(std::as_bytes(std::span(routes.ids)));
  kernels::ExpertsArgs args{.table = &layer.table(),
                            .x = memory.rows(tokens, layer.hidden()),
                            .ids = ids,
                            .weights = memory.rows(tokens, top_k).data,
                            .top_k = top_k,
                            .scratch = layer.make_scratch(bench, memory, tokens, top_k),
                            .y = memory.rows(tokens, layer.hidden())};
  const auto run = [&](uint32_t i) {
    args.ids = ids.at(uint64_t{i % calls} * tokens * top_k * sizeof(uint32_t));
    bench.queue().run_experts(args);
  };
  uint32_t next = 0;
  const double seconds =
      is_prompt ? bench.seconds_per_call(calls, [&] { run(next++); }) : bench.seconds_per_launch(calls, run);
  const double values = layer.values_of_one();
  bench.print(fmt::format("{} {} x [{}, {}], top {}: {:.1f} a call", name, layer.count(), layer.inner(), layer.hidden(),
                          top_k, routes.experts_per_call),
              tokens,
              {.bytes = values * routes.experts_per_call + 8.0 * tokens * layer.hidden(),
               .operations = 2 * values * tokens * top_k},
              seconds);
}

}  // namespace

void measure_products(CudaBench& bench) {
  const std::span<const Shape> shapes =
      bench.options().quick ? std::span<const Shape>(kQuickShapes) : std::span<const Shape>(kDecodeShapes);
  const std::vector<uint32_t> row_counts = decode_rows(bench);
  for (const Shape& shape : shapes)
    measure_linear(bench, shape, row_counts);
  for (const uint32_t rows : row_counts)
    measure_head_linear(bench, rows);
}

namespace {

void measure_prompts(CudaBench& bench, const RoutedExperts& layer, const char* name) {
  for (const uint32_t tokens : {bench.sized(512U, 9U), bench.sized(4096U, 70U)})
    measure_layer(bench, layer, tokens, true, name);
}

void measure_all_experts(CudaBench& bench) {
  Memory memory = bench.memory();
  const RoutedExperts layer(bench, memory);
  for (const uint32_t tokens : decode_rows(bench))
    measure_layer(bench, layer, tokens);
  measure_prompts(bench, layer, "run_experts");
}

/// Without cuBLASLt, where the one before had it.
void measure_own_experts(CudaBench& bench) {
  CudaBenchOptions own_options = bench.options();
  own_options.cuda.cublaslt = kernels::kNoCublasLt;
  const auto device = device_of(own_options);
  CudaBench own(*device, own_options);
  own.set_limits(bench.limits());
  Memory memory = own.memory();
  measure_prompts(own, RoutedExperts(own, memory), "run_experts, own kernels");
}

}  // namespace

void measure_experts(CudaBench& bench) {
  measure_all_experts(bench);  // whose memory is free afterwards
  if (bench.has_cublaslt()) measure_own_experts(bench);
}

void measure_prefill_products(CudaBench& bench) {
  constexpr uint32_t kRows[] = {512, 4096}, kQuickRows[] = {40, 70};
  const std::span<const Shape> shapes =
      bench.options().quick ? std::span<const Shape>(kQuickShapes) : std::span<const Shape>(kPrefillShapes);
  const std::span<const uint32_t> rows =
      bench.options().quick ? std::span<const uint32_t>(kQuickRows) : std::span<const uint32_t>(kRows);
  CudaBenchOptions own_options = bench.options();
  own_options.cuda.cublaslt = kernels::kNoCublasLt;
  const auto own_device = bench.has_cublaslt() ? device_of(own_options) : nullptr;
  for (const Shape& shape : shapes) {
    measure_linear(bench, shape, rows);
    if (own_device == nullptr) continue;
    CudaBench own(*own_device, own_options);
    own.set_limits(bench.limits());
    measure_linear(own, shape, rows, "linear, own kernels");
  }
}

}  // namespace dspack::bench
