// Products of weights with activations: matrix-vector products, a layer's routed experts, prefill.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

#include "format/base/checked.h"
#include "tests/bench/cuda_bench.h"

namespace dspack::bench {
namespace {

using kernels::Rows;
using kernels::Slice;
using kernels::Weight;

constexpr uint32_t kBlock = 128;

struct Shape {
  const char* name;
  uint32_t out;
  uint32_t in;
  Dtype dtype;
};

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

/// Tokens of a pass: one, or those of a verify step.
std::vector<uint32_t> decode_rows(const CudaBench& bench) {
  return bench.options().quick ? std::vector<uint32_t>{1, 3} : std::vector<uint32_t>{1, 2, 4, 8};
}

std::string name_of(const char* operation, const Shape& shape) {
  return fmt::format("{} {} [{}, {}] {}", operation, shape.name, shape.out, shape.in, to_string(shape.dtype));
}

double bytes_of(const Shape& shape) {
  return static_cast<double>(shape.out) * shape.in * bits_of(shape.dtype) / 8;
}

Slice scales(Memory& memory, uint32_t out, uint32_t in) {
  return memory.numbers(Dtype::f32, uint64_t{ceil_div(out, kBlock)} * ceil_div(in, kBlock));
}

Weight weight_of(const Shape& shape, Slice data, Slice scale) {
  const uint32_t block = shape.dtype == Dtype::f8_e4m3 ? kBlock : 0;
  return {.dtype = shape.dtype,
          .out = shape.out,
          .in = shape.in,
          .data = data,
          .scale = block > 0 ? scale : Slice{},
          .block_out = block,
          .block_in = block};
}

/// linear() of one shape for several numbers of rows.
void measure_linear(CudaBench& bench, const Shape& shape, std::span<const uint32_t> row_counts) {
  Memory memory = bench.memory();
  const Rotation weights(memory, shape.dtype, uint64_t{shape.out} * shape.in, bench.pool_bytes());
  const Slice scale = scales(memory, shape.out, shape.in);
  const uint32_t most = *std::ranges::max_element(row_counts);
  Rows x = memory.rows(most, shape.in), y = memory.rows(most, shape.out);
  for (const uint32_t rows : row_counts) {
    x.rows = y.rows = rows;
    const double seconds = bench.seconds_per_launch(
        weights.places(), [&](uint32_t i) { bench.queue().linear(weight_of(shape, weights.at(i), scale), x, y); });
    const double values = static_cast<double>(shape.out) * shape.in;
    const double activations = 4.0 * rows * (static_cast<double>(shape.in) + shape.out);
    bench.print(name_of("linear", shape), rows,
                {.bytes = bytes_of(shape) + activations, .operations = 2 * rows * values}, seconds);
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

/// The routed experts of one layer, in one buffer.
class Layer {
 public:
  Layer(CudaBench& bench, Memory& memory)
      : hidden_(bench.sized<uint32_t>(7168, 128)), inner_(bench.sized<uint32_t>(2048, 128)) {
    const uint64_t matrix = uint64_t{hidden_} * inner_;
    const kernels::DeviceMemory device = bench.device().memory();
    const uint64_t room = device.free_bytes / 10 * 8 / (3 * matrix);  // the rest is for scratch and activations
    count_ = bench.sized<uint32_t>(static_cast<uint32_t>(std::min<uint64_t>(room, 256)), 8);
    if (count_ < 16 && !bench.options().quick) throw std::runtime_error("no memory for 16 experts");
    const Slice data = memory.numbers(Dtype::f8_e4m3, 3 * matrix * count_);
    const Slice wide = scales(memory, inner_, hidden_), tall = scales(memory, hidden_, inner_);
    const Shape in{"gate", inner_, hidden_, Dtype::f8_e4m3}, out{"down", hidden_, inner_, Dtype::f8_e4m3};
    std::vector<kernels::ExpertMatrices> experts;
    for (uint64_t i = 0; i < count_; ++i) {
      const Slice place = data.at(3 * matrix * i);
      experts.push_back({.gate = weight_of(in, place, wide),
                         .up = weight_of(in, place.at(matrix), wide),
                         .down = weight_of(out, place.at(2 * matrix), tall)});
    }
    auto table = bench.device().make_expert_table(experts);
    if (!table) throw std::runtime_error(table.error().message);
    table_ = std::move(*table);
  }

  [[nodiscard]] uint32_t hidden() const { return hidden_; }
  [[nodiscard]] uint32_t inner() const { return inner_; }
  [[nodiscard]] uint32_t count() const { return count_; }
  [[nodiscard]] const kernels::ExpertTable& table() const { return *table_; }

 private:
  uint32_t hidden_, inner_, count_ = 0;
  std::unique_ptr<kernels::ExpertTable> table_;
};

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

void measure_layer(CudaBench& bench, const Layer& layer, uint32_t tokens) {
  constexpr uint32_t kCalls = 64;
  const auto top_k = bench.sized<uint32_t>(8, 2);
  const Routes routes = draw_routes(kCalls, tokens, top_k, layer.count());
  Memory memory = bench.memory();
  const Slice ids = memory.upload(std::as_bytes(std::span(routes.ids)));
  kernels::ExpertsArgs args{
      .table = &layer.table(),
      .x = memory.rows(tokens, layer.hidden()),
      .ids = ids,
      .weights = memory.rows(tokens, top_k).data,
      .top_k = top_k,
      .scratch = memory.uninitialised(bench.device().experts_scratch_bytes({.hidden = layer.hidden(),
                                                                            .inner = layer.inner(),
                                                                            .experts = layer.count(),
                                                                            .top_k = top_k,
                                                                            .rows = tokens})),
      .y = memory.rows(tokens, layer.hidden())};
  const double seconds = bench.seconds_per_launch(kCalls, [&](uint32_t i) {
    args.ids = ids.at(uint64_t{i % kCalls} * tokens * top_k * sizeof(uint32_t));
    bench.queue().run_experts(args);
  });
  const double values = 3.0 * layer.hidden() * layer.inner();
  bench.print(fmt::format("run_experts {} x [{}, {}], top {}: {:.1f} a call", layer.count(), layer.inner(),
                          layer.hidden(), top_k, routes.experts_per_call),
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

void measure_experts(CudaBench& bench) {
  Memory memory = bench.memory();
  const Layer layer(bench, memory);
  for (const uint32_t tokens : decode_rows(bench))
    measure_layer(bench, layer, tokens);
  measure_layer(bench, layer, bench.sized(512U, 9U));
}

void measure_prefill_products(CudaBench& bench) {
  constexpr uint32_t kRows[] = {512, 4096}, kQuickRows[] = {40};
  if (bench.options().quick) return measure_linear(bench, kQuickShapes[0], kQuickRows);
  for (const Shape& shape : kPrefillShapes)
    measure_linear(bench, shape, kRows);
}

}  // namespace dspack::bench
