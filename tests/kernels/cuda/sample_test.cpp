#include "kernels/cuda/tokens/sample.h"

#include <dspack_gpu.h>

#include "kernels/cuda/tokens/argmax.h"
#include "kernels/sample_weights.h"
#include "kernels/sampling.h"
#include "tests/kernels/cuda/gpu_lab.h"

namespace dspack::test::sample_test {
namespace {

namespace cuda = kernels::cuda;

uint32_t plain_argmax(const float* values, size_t count) {
  size_t best = 0;
  for (size_t i = 0; i < count; ++i) {
    if (std::isnan(values[i])) return kernels::kNoToken;
    if (values[i] > values[best]) best = i;
  }
  return std::isinf(values[best]) ? kernels::kNoToken : static_cast<uint32_t>(best);
}

void check(const std::vector<float>& values, uint32_t rows, uint32_t cols, uint32_t stride, Random& random) {
  CAPTURE(rows);
  CAPTURE(cols);
  CAPTURE(stride);
  GpuLab lab(random.below(1000));
  const std::vector<std::byte> scratch(cuda::argmax_scratch_bytes(rows, cols), std::byte{0xff});
  const cuda::ArgmaxTask task{.x = {.data = lab.put(values, random.below(4) * sizeof(float)), .stride = stride},
                              .ids = lab.put(std::vector<uint32_t>(rows, 0xdeadbeef)),
                              .rows = rows,
                              .cols = cols,
                              .of_parts = reinterpret_cast<cuda::Highest*>(lab.put(scratch)),
                              .counter = lab.put(std::vector<uint32_t>{0})};
  cuda::run_argmax(lab.stream(), task);
  CHECK(lab.get(task.counter, 1).front() == 0);
  const auto ids = lab.get(task.ids, rows);
  for (size_t row = 0; row < rows; ++row)
    CHECK(ids[row] == plain_argmax(values.data() + row * stride, cols));
}

/// Draws one token of each row by run_sample; scratch memory has no byte more than it asks for.
std::vector<uint32_t> drawn(const std::vector<float>& logits, uint32_t cols, const kernels::SampleSettings& settings,
                            const std::vector<kernels::NoiseKey>& keys, Random& random) {
  GpuLab lab(random.below(1000));
  const auto rows = static_cast<uint32_t>(keys.size());
  const std::vector<std::byte> scratch(cuda::sample_scratch_bytes(rows, cols), std::byte{0xff});
  const cuda::SampleTask task{.logits = {.data = lab.put(logits, random.below(4) * sizeof(float)), .stride = cols},
                              .settings = lab.put(std::vector{settings}),
                              .keys = lab.put(keys),
                              .ids = lab.put(std::vector<uint32_t>(rows, 0xdeadbeef)),
                              .rows = rows,
                              .cols = cols,
                              .scratch = cuda::lay_out_sample(lab.put(scratch), rows, cols),
                              .counter = lab.put(std::vector<uint32_t>{0})};
  cuda::run_sample(lab.stream(), task);
  CHECK(lab.get(task.counter, 1).front() == 0);
  return lab.get(task.ids, rows);
}

}  // namespace

TEST_CASE("cuda: argmax takes the lowest of the largest, of numbers alone, in rows of every length and place") {
  Random random;
  CAPTURE(random.seed());
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const uint32_t cols : {1U, 2U, 3U, 4U, 5U, 31U, 33U, 127U, 255U, 257U, 1023U, 5000U}) {
    for (int kind = 0; kind < 5; ++kind) {
      const uint32_t rows = random.between(1, 4);
      const uint32_t stride = cols + random.below(4);
      std::vector<float> values(size_t{rows} * stride);
      for (float& value : values) {
        value =
            kind == 0 ? random.normal() : static_cast<float>(random.below(3)) * (random.below(2) == 0 ? 1.0F : -1.0F);
        if (kind == 2 && random.below(2) == 0) value = std::nanf("");
        if (kind == 3) value = random.below(2) == 0 ? std::nanf("") : -kInfinity;
        if (kind == 4 && random.below(cols) == 0) value = random.below(2) == 0 ? kInfinity : -kInfinity;
      }
      check(values, rows, cols, stride, random);
    }
    check(std::vector<float>(cols, std::nanf("")), 1, cols, cols, random);
    check(std::vector<float>(cols, -kInfinity), 1, cols, cols, random);
  }
}

TEST_CASE("cuda: argmax of vocabularies, the largest value in the first and last places") {
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t cols : {129'280U, 200'019U}) {
    auto values = random.normals(cols);
    check(values, 1, cols, cols, random);
    values[cols - 1] = 100;
    check(values, 1, cols, cols, random);
    values[0] = 100;
    check(values, 1, cols, cols, random);
  }
}

TEST_CASE("cuda: of vocabularies the token is drawn that the host draws") {
  Random random;
  CAPTURE(random.seed());
  const auto check_one = [&](uint32_t cols, const kernels::SampleSettings& settings) {
    CAPTURE(cols);
    CAPTURE(settings.top_k);
    CAPTURE(settings.top_p);
    CAPTURE(settings.min_p);
    std::vector<float> logits = random.normals(cols);
    for (float& logit : logits)
      logit *= 3;
    const kernels::NoiseKey key{.seed = random.below(1000), .position = random.below(1000)};
    CAPTURE(key.seed);
    CAPTURE(key.position);
    CHECK(drawn(logits, cols, settings, {key}, random).front() == kernels::sample_row(logits, settings, key));
  };
  check_one(129'280, {.temperature = 0.8, .top_p = 0.9, .top_k = 40});  // 32 warps
  check_one(17'001, {.temperature = 0.8});
  check_one(17'001, {.temperature = 0.6, .top_p = 0.95});
  check_one(17'001, {.min_p = 0.01});
  check_one(17'001, {.top_k = 3000});  // more than there are chunks
  check_one(17'001, {.top_p = 0.5, .min_p = 0.02});
  const std::vector<float> flat(10'000, 1.0F);
  std::vector<kernels::NoiseKey> keys;
  for (uint64_t position = 0; position < 8; ++position)
    keys.push_back({.seed = 1, .position = position});
  std::vector<float> flat_rows;
  for (size_t row = 0; row < keys.size(); ++row)
    flat_rows.insert(flat_rows.end(), flat.begin(), flat.end());
  for (const uint32_t id : drawn(flat_rows, 10'000, {.top_p = 0.5}, keys, random))
    CHECK(id < 5'000);
}

TEST_CASE("cuda: thousands of draws of one distribution are the host's") {
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kCols = 40;
  constexpr uint32_t kRows = 700;
  const std::vector<float> of_row = random.normals(kCols);
  std::vector<float> logits;
  std::vector<kernels::NoiseKey> keys;
  for (uint32_t row = 0; row < kRows; ++row) {
    logits.insert(logits.end(), of_row.begin(), of_row.end());
    keys.push_back({.seed = random.below(UINT32_MAX), .position = row});
  }
  for (const kernels::SampleSettings& settings :
       {kernels::SampleSettings{.temperature = 0.8}, kernels::SampleSettings{.temperature = 0.8, .top_p = 0.9}}) {
    const auto found = drawn(logits, kCols, settings, keys, random);
    uint32_t differing = 0;
    for (uint32_t row = 0; row < kRows; ++row)
      differing += found[row] == kernels::sample_row(of_row, settings, keys[row]) ? 0 : 1;
    CHECK(differing == 0);
  }
}

TEST_CASE("cuda: launches that draw fit every vocabulary") {
  for (const uint32_t cols : {1U, 128U, 129U, 4096U, 129'280U, kernels::kMaxSampled}) {
    const auto shape = cuda::choose_sample_launch(3, cols);
    CHECK(shape.grid_x == 3);
    CHECK(uint64_t{shape.grid_y} * shape.threads / gpu::kWarpThreads >= cuda::sample_chunks(cols));
    CHECK(shape.grid_y <= 65'535);
  }
}

}  // namespace dspack::test::sample_test
