#include "kernels/cuda/sample.h"

#include "tests/kernels/cuda/gpu_lab.h"

namespace dspack::test {
namespace {

namespace cuda = kernels::cuda;

uint32_t plain_argmax(const float* values, size_t count) {
  size_t best = 0;
  for (size_t i = 0; i < count; ++i) {
    if (std::isnan(values[i])) return static_cast<uint32_t>(i);
    if (values[i] > values[best]) best = i;
  }
  return static_cast<uint32_t>(best);
}

void check(const std::vector<float>& values, uint32_t rows, uint32_t cols, uint32_t stride, Random& random) {
  CAPTURE(rows);
  CAPTURE(cols);
  CAPTURE(stride);
  GpuLab lab(random.below(1000));
  const cuda::ArgmaxTask task{.x = {.data = lab.put(values, random.below(4) * sizeof(float)), .stride = stride},
                              .ids = lab.put(std::vector<uint32_t>(rows, 0xdeadbeef)),
                              .rows = rows,
                              .cols = cols};
  cuda::run_argmax(lab.stream(), task);
  const auto ids = lab.get(task.ids, rows);
  for (size_t row = 0; row < rows; ++row)
    CHECK(ids[row] == plain_argmax(values.data() + row * stride, cols));
}

}  // namespace

TEST_CASE("cuda: argmax takes the lowest of the largest, NaN before all, in rows of every length and place") {
  Random random;
  CAPTURE(random.seed());
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const uint32_t cols : {1U, 2U, 3U, 4U, 5U, 31U, 33U, 127U, 255U, 257U, 1023U, 5000U}) {
    for (int kind = 0; kind < 4; ++kind) {
      const uint32_t rows = random.between(1, 4);
      const uint32_t stride = cols + random.below(4);
      std::vector<float> values(size_t{rows} * stride);
      for (float& value : values) {
        value =
            kind == 0 ? random.normal() : static_cast<float>(random.below(3)) * (random.below(2) == 0 ? 1.0F : -1.0F);
        if (kind == 2 && random.below(2) == 0) value = std::nanf("");
        if (kind == 3) value = random.below(2) == 0 ? std::nanf("") : -kInfinity;
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

}  // namespace dspack::test
