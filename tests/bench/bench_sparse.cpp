// Attention of DeepSeek-V3.2 over contexts of 1k to 64k positions, of one token and of 64 of a prompt: the indexer's
// choice and attention over it, against attention to all positions and against what the processor could do.
//
//   bench_sparse [threads] [type of index keys: f32 | bf16 | f16 | fp8] [type of latents]
//
// One layer, on the CPU: 64 index heads of 128, 2048 positions chosen, 128 heads over a latent of 512 and a rotary key
// of
// 64. The floor of each is its multiplications over the rate of FP32 fused multiply-adds, or its bytes over the rate of
// memory, whichever is longer; both rates are measured in the same run. Medians.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "format/base/check.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_peak.h"

namespace dspack::kernels {
namespace {

constexpr uint32_t kIndexHeads = 64, kIndexDim = 128, kMax = 2048;
constexpr uint32_t kHeads = 128, kLatent = 512, kRope = 64;
constexpr uint32_t kLongest = 65536;
constexpr uint32_t kMaxRows = 64;
constexpr int kRuns = 5;

Dtype type_named(std::string_view name) {
  if (name == "bf16") return Dtype::bf16;
  if (name == "f16") return Dtype::f16;
  if (name == "fp8") return Dtype::f8_e4m3;
  DSPACK_CHECK(name == "f32", "a type is f32, bf16, f16 or fp8");
  return Dtype::f32;
}

std::unique_ptr<Buffer> allocate(Device& device, uint64_t bytes) {
  auto buffer = device.allocate(bytes);
  DSPACK_CHECK(buffer.has_value(), buffer.error().message);
  return std::move(buffer).value();
}

std::unique_ptr<Buffer> random_rows(Device& device, uint64_t values) {
  auto buffer = allocate(device, values * sizeof(float));
  std::mt19937 random(1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same numbers every time
  std::normal_distribution<float> normal;
  auto* const to = reinterpret_cast<float*>(buffer->host().data());
  std::generate(to, to + values, [&] { return normal(random); });
  return buffer;
}

template <class Work>
double median_seconds(const Work& work) {
  std::vector<double> seconds;
  work();
  for (int run = 0; run < kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + kRuns / 2);
  return seconds[kRuns / 2];
}

/// A layer's cache of so many positions, and one token's queries.
struct Layer {
  Layer(Device& device, Queue& queue, Dtype keys, Dtype latents)
      : key_dtype(keys),
        latent_dtype(latents),
        key_codes(allocate(device, bytes_of(keys, uint64_t{kLongest} * kIndexDim))),
        key_scales(allocate(device, kLongest * sizeof(float))),
        cache(allocate(device, kLongest * cache_row_bytes(latents, {kLatent, kRope}))),
        index_queries(random_rows(device, uint64_t{kMaxRows} * kIndexHeads * kIndexDim)),
        index_weights(random_rows(device, uint64_t{kMaxRows} * kIndexHeads)),
        queries(random_rows(device, uint64_t{kMaxRows} * kHeads * (kLatent + kRope))),
        out(allocate(device, uint64_t{kMaxRows} * kHeads * kLatent * sizeof(float))),
        ids(allocate(device, uint64_t{kMaxRows} * kMax * sizeof(uint32_t))),
        counts(allocate(device, kMaxRows * sizeof(uint32_t))) {
    constexpr uint32_t kPiece = 4096;
    const auto key_rows = random_rows(device, uint64_t{kPiece} * kIndexDim);
    const auto latent_rows = random_rows(device, uint64_t{kPiece} * (kLatent + kRope));
    for (uint32_t first = 0; first < kLongest; first += kPiece) {
      // Each piece is another one: rows begin further on in the same numbers.
      const uint64_t skip = first / kPiece * sizeof(float);
      const Rows from{.data = {key_rows.get(), skip}, .rows = kPiece - 1, .cols = kIndexDim, .stride = kIndexDim};
      const Slice to{key_codes.get(), bytes_of(keys, uint64_t{first} * kIndexDim)};
      if (keys == Dtype::f8_e4m3) {
        queue.store_fp8_rows(to, {key_scales.get(), first * sizeof(float)}, from);
      } else {
        queue.store_rows(to, keys, from);
      }
      const Rows latent{
          .data = {latent_rows.get(), skip}, .rows = kPiece - 1, .cols = kLatent + kRope, .stride = kLatent + kRope};
      const Slice stored{cache.get(), first * cache_row_bytes(latents, {kLatent, kRope})};
      if (latents == Dtype::f8_e4m3) {
        queue.store_latents(stored, {kLatent, kRope}, latent);
      } else {
        queue.store_rows(stored, latents, latent);
      }
    }
  }

  [[nodiscard]] ChooseArgs choose(uint32_t positions, uint32_t rows) const {
    Weight keys;
    keys.coding = *coding_of(key_dtype);
    keys.out = kLongest;
    keys.in = kIndexDim;
    keys.planes[kCodes] = {key_codes.get(), 0};
    if (key_dtype == Dtype::f8_e4m3) {
      keys.block_out = 1;
      keys.block_in = kIndexDim;
      keys.planes[kScales] = {key_scales.get(), 0};
    }
    return {.queries = {index_queries.get(), 0},
            .weights = {index_weights.get(), 0},
            .keys = keys,
            .choice = choice(),
            .rows = rows,
            .heads = kIndexHeads,
            .first_position = positions - rows};
  }
  [[nodiscard]] MlaAttendArgs attend(uint32_t positions, uint32_t rows, const Choice& chosen) const {
    return {.query_latent = {queries.get(), 0},
            .query_rope = {queries.get(), uint64_t{kMaxRows} * kHeads * kLatent * sizeof(float)},
            .cache = {cache.get(), 0},
            .out = {out.get(), 0},
            .rows = rows,
            .heads = kHeads,
            .latent_dim = kLatent,
            .rope_dim = kRope,
            .rope_row_stride = kHeads * kRope,
            .rope_head_stride = kRope,
            .first_position = positions - rows,
            .scale = 0.07F,
            .cache_dtype = latent_dtype,
            .choice = chosen};
  }
  [[nodiscard]] Choice choice() const { return {.ids = {ids.get(), 0}, .counts = {counts.get(), 0}, .most = kMax}; }

  Dtype key_dtype, latent_dtype;
  std::unique_ptr<Buffer> key_codes, key_scales, cache, index_queries, index_weights, queries, out, ids, counts;
};

struct Cost {
  double operations = 0;
  double bytes = 0;
  [[nodiscard]] double floor(const CpuPeak& peak) const {
    return std::max(operations / peak.operations_per_second, bytes / peak.bytes_per_second);
  }
};

/// Of `rows` tokens at the end of so many positions; times are of one token.
void print_table(Queue& queue, const Layer& layer, const CpuPeak& peak, uint32_t rows) {
  std::printf("\n%u %s\n\n", rows, rows == 1 ? "token" : "tokens at once, ms of each");
  std::puts(
      "| positions | choose, ms | floor / time | attend to the choice, ms | floor / time | sparse, ms | dense, ms | "
      "floor / time | dense / sparse |");
  std::puts("|---|---|---|---|---|---|---|---|---|");
  const bool is_scaled = layer.key_dtype == Dtype::f8_e4m3;
  const double key_bytes = static_cast<double>(bytes_of(layer.key_dtype, kIndexDim)) + (is_scaled ? 4 : 0);
  const auto row_bytes = static_cast<double>(cache_row_bytes(layer.latent_dtype, {kLatent, kRope}));
  for (uint32_t positions = 1024; positions <= kLongest; positions *= 2) {
    const auto seconds = [&](const auto& work) { return median_seconds(work) / rows; };
    const double choosing = seconds([&] { queue.choose(layer.choose(positions, rows)); });
    const double chosen = seconds([&] { queue.mla_attend(layer.attend(positions, rows, layer.choice())); });
    const double dense = seconds([&] { queue.mla_attend(layer.attend(positions, rows, {})); });
    // Rows share what they read.
    const auto attention = [&](double seen) {
      return Cost{.operations = 2.0 * kHeads * (2 * kLatent + kRope) * seen, .bytes = seen * row_bytes / rows};
    };
    const Cost index = positions <= kMax ? Cost{}
                                         : Cost{.operations = 2.0 * kIndexHeads * (kIndexDim + 1) * positions,
                                                .bytes = positions * key_bytes / rows};
    std::printf("| %u | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", positions, 1e3 * choosing,
                index.floor(peak) / choosing, 1e3 * chosen, attention(std::min(positions, kMax)).floor(peak) / chosen,
                1e3 * (choosing + chosen), 1e3 * dense, attention(positions).floor(peak) / dense,
                dense / (choosing + chosen));
    std::fflush(stdout);
  }
}

int run(int argc, char** argv) {
  const unsigned threads = argc > 1 ? static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)) : 0;
  const Dtype keys = type_named(argc > 2 ? argv[2] : "f32");
  const Dtype latents = type_named(argc > 3 ? argv[3] : "f32");
  const CpuOptions options{.threads = threads, .instruction_set = {}};
  auto device = make_cpu_device(options);
  DSPACK_CHECK(device.has_value(), device.error().message);
  const auto queue = (*device)->make_queue();
  const Layer layer(**device, *queue, keys, latents);
  const auto peak = measure_cpu_peak(options, {});
  DSPACK_CHECK(peak.has_value(), peak.error().message);
  std::printf("%s; FP32 %.0f GFLOP/s, memory %.1f GB/s\n", std::string((*device)->description()).c_str(),
              peak->operations_per_second / 1e9, peak->bytes_per_second / 1e9);
  print_table(*queue, layer, *peak, 1);
  print_table(*queue, layer, *peak, kMaxRows);
  return 0;
}

}  // namespace
}  // namespace dspack::kernels

int main(int argc, char** argv) {
  return dspack::kernels::run(argc, argv);
}
