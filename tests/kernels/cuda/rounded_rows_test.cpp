// Rounded inputs have exactly the values that precision modes say, and a queue never multiplies old ones.
#include "kernels/cuda/tokens/rounded_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <memory>
#include <span>

#include "kernels/cuda/host/cuda_device.h"
#include "tests/kernels/cuda/gpu_lab.h"
#include "tests/kernels/cuda/rounded_inputs.h"
#include "tests/kernels/weights.h"

namespace dspack::test::rounded_rows_test {
namespace {

namespace cuda = kernels::cuda;
using kernels::Precision;
using kernels::Rows;

struct Rounded {
  std::vector<float> values;  // [rows, columns]
  std::vector<float> scales;  // [rows, columns / 128]; bf16: none
  uint32_t columns = 0;
};

/// Rows with a gap behind each, rounded.
Rounded round(const std::vector<float>& x, uint32_t rows, uint32_t in, Precision rounding, uint64_t seed) {
  constexpr uint32_t kGap = 3;
  GpuLab lab(seed);
  std::vector<float> spread(size_t{rows} * (in + kGap), poison());
  for (size_t i = 0; i < x.size(); ++i)
    spread[i / in * (in + kGap) + i % in] = x[i];
  const std::vector<uint8_t> memory(cuda::rounded_bytes(rows, in), 0xff);
  const cuda::RoundedRows to = cuda::lay_out_rounded(lab.put(memory), rows, in, rounding);
  cuda::run_round_rows(lab.stream(),
                       {.x = {.data = lab.put(spread), .stride = in + kGap}, .rows = rows, .in = in, .to = to});
  Rounded result{.values = {}, .scales = {}, .columns = to.columns};
  for (const uint16_t bits : lab.get(to.values, size_t{rows} * to.columns))
    result.values.push_back(std::bit_cast<float>(uint32_t{bits} << 16U));
  if (to.scales != nullptr) result.scales = lab.get(to.scales, size_t{rows} * to.columns / cuda::kRoundedBlock);
  return result;
}

/// A queue of a device of some precision.
class QueueLab {
 public:
  explicit QueueLab(Precision precision) {
    gpu::configure_emulator({});
    auto device = kernels::make_cuda_device({.precision = precision, .cublaslt = kernels::kNoCublasLt});
    REQUIRE(device.has_value());
    device_ = std::move(device).value();
    queue_ = device_->make_queue();
  }
  kernels::Queue& queue() { return *queue_; }

  template <class T>
  kernels::Slice put(const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    auto buffer = device_->allocate(bytes.size());
    REQUIRE(buffer.has_value());
    buffers_.push_back(std::move(*buffer));
    queue_->upload({buffers_.back().get(), 0}, bytes);
    queue_->synchronize();
    return {buffers_.back().get(), 0};
  }
  kernels::Slice poisoned(size_t count) { return put(std::vector<float>(count, poison())); }
  kernels::Weight put(const RandomWeight& weight) {
    kernels::Weight placed{form_of(weight.shape), {put(weight.bytes)}};
    weight.put_planes(placed.planes, [&](const auto& values) { return put(values); });
    return placed;
  }
  std::vector<float> get(kernels::Slice place, size_t count) {
    std::vector<float> values(count);
    queue_->download(std::as_writable_bytes(std::span(values)), place);
    queue_->synchronize();
    return values;
  }
  /// x [rows, in] times the weight.
  std::vector<float> product(const kernels::Weight& weight, const std::vector<float>& x, uint32_t rows) {
    const kernels::Slice y = poisoned(size_t{rows} * weight.out);
    queue_->linear(weight, {put(x), rows, weight.in, weight.in}, {y, rows, weight.out, weight.out});
    return get(y, size_t{rows} * weight.out);
  }

 private:
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Queue> queue_;
  std::vector<std::unique_ptr<kernels::Buffer>> buffers_;
};

constexpr Precision kModes[] = {Precision::bf16, Precision::fp8};

}  // namespace

TEST_CASE("cuda: inputs are rounded to the nearest number, with zeros behind each row") {
  Random random;
  CAPTURE(random.seed());
  for (const Precision rounding : kModes) {
    for (const auto& [rows, in] : std::initializer_list<std::pair<uint32_t, uint32_t>>{
             {1, 1}, {3, 127}, {2, 128}, {5, 300}, {1, 1536}, {70, 40}}) {
      CAPTURE(to_string(rounding));
      CAPTURE(in);
      const auto x = random.normals(size_t{rows} * in);
      const Rounded got = round(x, rows, in, rounding, random.below(1000));
      REQUIRE(got.columns == round_up(in, kInputBlock));
      const auto wanted = rounded_inputs(x, rows, in, rounding, Dtype::f8_e4m3);
      for (uint32_t row = 0; row < rows; ++row) {
        for (uint32_t column = 0; column < got.columns; ++column) {
          const size_t at = size_t{row} * got.columns + column;
          const double scale = rounding == Precision::fp8 ? static_cast<double>(got.scales[at / kInputBlock]) : 1.0;
          CHECK(static_cast<double>(got.values[at]) * scale == (column < in ? wanted[size_t{row} * in + column] : 0.0));
        }
      }
    }
  }
}

TEST_CASE("cuda: a block of zeros has the scale one, and a NaN stays one") {
  std::vector<float> x(256, 0.0F);
  x[130] = std::numeric_limits<float>::quiet_NaN();
  x[131] = 448;
  const Rounded got = round(x, 1, 256, Precision::fp8, 1);
  CHECK(got.scales == std::vector<float>{1, 1});
  CHECK(got.values[0] == 0);
  CHECK(std::isnan(got.values[130]));
  CHECK(got.values[131] == 448);
}

TEST_CASE("cuda: products of one input by several weights round it once") {
  Random random;
  for (const Precision precision : kModes) {
    QueueLab on(precision);
    kernels::Queue& queue = on.queue();
    const auto make = [&](Dtype dtype) { return on.put(random_weight({dtype, 48, 256}, random)); };
    const kernels::Weight f8 = make(Dtype::f8_e4m3);
    const kernels::Weight other = make(Dtype::f8_e4m3);
    const kernels::Weight bf16 = make(Dtype::bf16);
    const Rows x{on.put(random.normals(2 * 256)), 2, 256, 256};
    const Rows y{on.poisoned(2 * 48), 2, 48, 48};
    const auto launches = [&](const auto& operations) {
      queue.synchronize();
      const uint64_t before = gpu::emulator_counts().launches;
      operations();
      queue.synchronize();
      return gpu::emulator_counts().launches - before;
    };
    CHECK(launches([&] {
            queue.linear(f8, x, y);
            queue.linear(other, x, y);
          }) == 3);
    // BF16 weights take BF16 inputs in both precisions.
    CHECK(launches([&] {
            queue.linear(f8, x, y);
            queue.linear(bf16, x, y);
          }) == (precision == Precision::fp8 ? 4 : 3));
    // As between kv_a and q_a: nothing of it writes the input.
    const kernels::Slice gain = on.put(random.normals(48));
    const kernels::Slice cache = on.poisoned(2 * 48);
    CHECK(launches([&] {
            queue.linear(f8, x, y);
            queue.rms_norm(y, gain, 1e-6F, y);
            queue.store_rows(cache, Dtype::f32, y);
            queue.linear(other, x, y);
          }) == 5);
    const Rows narrow{x.data, 2, 48, 256};
    CHECK(launches([&] {
            queue.linear(f8, x, y);
            queue.rms_norm(narrow, gain, 1e-6F, narrow);
            queue.linear(other, x, y);
          }) == 5);
    // Sums likewise.
    CHECK(launches([&] {
            queue.linear(f8, x, y);
            queue.add(y, y);
            queue.linear(other, x, y);
          }) == 4);
    CHECK(launches([&] {
            queue.linear(f8, x, y);
            queue.add(narrow, y);
            queue.linear(other, x, y);
          }) == 5);
    // Anything else may change it.
    const kernels::Slice ids = on.poisoned(2);
    CHECK(launches([&] {
            queue.linear(f8, x, y);
            queue.argmax(y, ids);
            queue.linear(other, x, y);
          }) == 5);
  }
}

TEST_CASE("cuda: what has been written since is rounded anew") {
  Random random;
  CAPTURE(random.seed());
  for (const Precision precision : kModes) {
    QueueLab on(precision);
    kernels::Queue& queue = on.queue();
    constexpr uint32_t kIn = 256;
    const auto weight = on.put(random_weight({Dtype::f8_e4m3, kIn, kIn, 128, 128}, random));
    const auto first = random.normals(kIn);
    const auto second = random.normals(kIn);
    const auto of_first = on.product(weight, first, 1);
    const auto of_second = on.product(weight, second, 1);
    const auto of_product = on.product(weight, of_first, 1);
    const Rows x{on.put(first), 1, kIn, kIn};
    const Rows y{on.poisoned(kIn), 1, kIn, kIn};
    const Rows z{on.poisoned(kIn), 1, kIn, kIn};
    queue.linear(weight, x, y);
    queue.upload(x.data, std::as_bytes(std::span(second)));
    queue.linear(weight, x, z);
    CHECK(on.get(y.data, kIn) == of_first);
    CHECK(on.get(z.data, kIn) == of_second);
    // A product that writes the rows that were rounded last.
    const Rows again{on.put(first), 1, kIn, kIn};
    queue.linear(weight, y, z);
    queue.linear(weight, again, y);
    queue.linear(weight, y, z);
    CHECK(on.get(z.data, kIn) == of_product);
    // Sums, products and norms that write rows which have been rounded.
    const kernels::Slice gain = on.put(std::vector<float>(kIn, 1.0F));
    const auto check_anew = [&](const auto& write) {
      const Rows rows{on.put(first), 1, kIn, kIn};
      queue.rms_norm_for(std::span(&weight, 1), rows, gain, 1e-6F, rows);
      write(rows);
      queue.linear(weight, rows, z);
      CHECK(on.get(z.data, kIn) == on.product(weight, on.get(rows.data, kIn), 1));
    };
    check_anew([&](const Rows& rows) { queue.add(rows, again); });
    check_anew([&](const Rows& rows) { queue.add_linear(weight, again, rows, y); });
    check_anew([&](const Rows& rows) { queue.linear_each(std::array{kernels::Product{weight, rows}}, again); });
    check_anew([&](const Rows& rows) { queue.silu_multiply(rows, again); });
    check_anew([&](const Rows& rows) { queue.rms_norm(again, gain, 1e-6F, rows); });
    // A recorded step rounds for itself, each time it runs.
    queue.linear(weight, x, z);
    const auto step = queue.record([&] { queue.linear(weight, x, z); });
    queue.upload(x.data, std::as_bytes(std::span(first)));
    queue.run(*step);
    CHECK(on.get(z.data, kIn) == of_first);
    queue.linear(weight, x, y);
    queue.upload(x.data, std::as_bytes(std::span(second)));
    queue.run(*step);
    CHECK(on.get(z.data, kIn) == of_second);
  }
}

TEST_CASE("cuda: inputs that do not fit the workspace at once are rounded in parts") {
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kIn = 32'768;  // 127 rows fit
  constexpr uint32_t kRows = 130;
  for (const Precision precision : kModes) {
    QueueLab on(precision);
    const auto weight = on.put(random_weight({Dtype::f8_e4m3, 16, kIn, 128, 128}, random));
    const auto x = random.normals(size_t{kRows} * kIn);
    const auto all = on.product(weight, x, kRows);
    for (const uint32_t row : {0U, 63U, 64U, 129U}) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>(size_t{row} * kIn);
      const auto alone = on.product(weight, {begin, begin + kIn}, 1);
      CHECK(std::equal(alone.begin(), alone.end(), all.begin() + static_cast<std::ptrdiff_t>(size_t{row} * 16)));
    }
  }
}

}  // namespace dspack::test::rounded_rows_test
