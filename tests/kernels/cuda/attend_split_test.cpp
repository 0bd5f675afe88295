// Attention by products split into BF16 terms: how far it is from double precision, and that its bits depend on nothing
// but the row.
#include "kernels/cuda/attention/tensor_keys.cuh"
#include "kernels/cuda/host/cuda_device.h"
#include "tests/kernels/cuda/attend_lab.h"

namespace dspack::test::attend_split_test {
namespace {

using kernels::cuda::AttendChoice;

constexpr AttendChoice kSplitChoices[] = {AttendChoice::split_32x2, AttendChoice::split_16x2};

/// What an error is a multiple of: FP32's roundoff u times the magnitudes that were added up. How large it may be:
///
/// Eight products on tensor cores are exact; they and the sum so far are cut off below u times the largest of them, and
/// the new sum below 2 u of itself: together 11 u of the magnitudes at most. V3's score is four sums of 9 x 2 times
/// eight products of first terms, and as many of the other two terms, which are 2^-8 of them: (198 + 2) u S, where S is
/// the sum of all products' magnitudes; adding the sums up, 6 u S. So a score is wrong by E = 206 u S, or exp(E) of its
/// weight. The values of a tile of 32 positions are four such sums of first terms after eight of others: 45 u of their
/// magnitudes; then each tile and each split adds roundings of its weights, sums, factors and values, 6 u.
double largest_error_bound(double products, const AttendCase& c) {
  const double steps = std::ceil((c.latent + c.rope) / 64.0);
  const double score_error = (steps * 2 * 11 * (1 + 0x1p-7) + 6) * kRoundoff * products;
  const double tiles = std::ceil((c.first_position + c.rows) / 32.0);
  return std::expm1(2 * score_error) / kRoundoff + 60 + 6 * tiles;
}

struct Errors {
  double largest = 0;  // in units of u times the magnitudes
  double nmse = 0;
  size_t beyond = 0;  // the bound
};

Errors errors_of(const std::vector<float>& got, const Reference& wanted, const AttendCase& c) {
  Errors errors;
  Doubles bound;
  for (size_t i = 0; i < got.size(); ++i) {
    const double unit = kRoundoff * wanted.magnitudes[i];
    bound.push_back(largest_error_bound(wanted.products[i / c.latent], c) * unit);
    if (unit > 0) errors.largest = std::max(errors.largest, std::abs(got[i] - wanted.values[i]) / unit);
  }
  const ErrorReport report = compare(got, wanted.values, c.latent);
  CHECK_FALSE(report.count_mismatch);
  CHECK(report.not_a_number == 0);
  errors.nmse = report.nmse;
  errors.beyond = beyond_bound(got, wanted.values, bound);
  return errors;
}

/// The error is `most` u at most: three times what was seen.
void check_split(const AttendCase& c, AttendChoice choice, double most, Random& random) {
  CAPTURE(c);
  CAPTURE(static_cast<int>(choice));
  GpuLab lab(random.seed());
  const AttendInput input = random_input(c, random);
  const Errors errors =
      errors_of(run_attend(lab, input, c, {.rows = c.rows, .choice = choice}), reference(input, c), c);
  CHECK(errors.beyond == 0);
  CHECK(errors.largest < most);
}

__global__ void split_kernel(const float* values, uint32_t* terms) {
  uint32_t pair[kernels::cuda::kSplitTerms];
  const unsigned thread = gpu::block_index().x * gpu::block_threads() + gpu::thread_index();
  kernels::cuda::device::split_pair(values[2 * thread], values[2 * thread + 1], pair);
  for (unsigned term = 0; term < kernels::cuda::kSplitTerms; ++term)
    terms[thread * kernels::cuda::kSplitTerms + term] = pair[term];
}

}  // namespace

TEST_CASE("cuda: three BF16 terms are an FP32 value, whatever its bits") {
  Random random;
  CAPTURE(random.seed());
  constexpr unsigned kPairs = 1024;
  std::vector<float> values = random.normals(2 * kPairs);
  // From 2^-90 to 2^100: the last bits of an FP32 value below 2^-110 are less than BF16 can hold.
  for (float& value : values)
    value = std::ldexp(value, static_cast<int>(random.below(191)) - 90);
  values[0] = 0;
  values[1] = std::nextafter(1.0F, 0.0F);  // rounds up, to 1
  values[2] = 0x1.fefffep0F;               // the longest rest
  values[3] = -0x1.00fffep-7F;
  std::vector<uint32_t> terms(size_t{kPairs} * kernels::cuda::kSplitTerms);
  const auto stream = gpu::make_stream(0);
  gpu::launch(*stream, {.grid_x = kPairs / 32, .threads = 32}, split_kernel, values.data(), terms.data());
  stream->synchronize();
  for (size_t i = 0; i < values.size(); ++i) {
    double sum = 0;
    for (unsigned term = 0; term < kernels::cuda::kSplitTerms; ++term) {
      const uint32_t pair = terms[i / 2 * kernels::cuda::kSplitTerms + term];
      sum += static_cast<double>(bf16_to_f32(static_cast<uint16_t>(i % 2 == 0 ? pair : pair >> 16U)));
    }
    CHECK(sum == static_cast<double>(values[i]));
  }
}

TEST_CASE("cuda: split attention agrees with double precision as FP32 does") {
  Random random;
  CAPTURE(random.seed());
  for (const AttendChoice choice : kSplitChoices) {
    for (const AttendCase& c :
         {AttendCase{1, 5, 16, 16, 70, 1, Dtype::bf16}, AttendCase{3, 9, 48, 0, 63, 1, Dtype::bf16},
          AttendCase{5, 4, 144, 32, 130, 1, Dtype::bf16}, AttendCase{70, 2, 32, 16, 0, 1, Dtype::bf16}})
      check_split(c, choice, 15, random);
  }
}

TEST_CASE("cuda: split attention at DeepSeek-V3's sizes, of one tile a split and of several") {
  Random random;
  CAPTURE(random.seed());
  check_split({1, 128, 512, 64, 70, 1, Dtype::bf16}, AttendChoice::split_32x2, 20, random);
  check_split({2, 16, 512, 64, 130, 3, Dtype::bf16}, AttendChoice::split_16x2, 45, random);
  check_split({1, 20, 512, 64, 130, 3, Dtype::bf16}, AttendChoice::split_32x2, 45, random);
  check_split({1, 5, 16, 16, 128 * 64 + 40, 3, Dtype::bf16}, AttendChoice::split_16x2, 20, random);
}

TEST_CASE("cuda: split attention is as near as exact attention, and thousands of times nearer than rounded operands") {
  Random random;
  CAPTURE(random.seed());
  const AttendCase c{1, 32, 512, 64, 600, 2, Dtype::bf16};
  CAPTURE(c);
  GpuLab lab(random.seed());
  const AttendInput input = random_input(c, random);
  const Reference wanted = reference(input, c);
  const auto errors = [&](AttendChoice choice) {
    return errors_of(run_attend(lab, input, c, {.rows = c.rows, .choice = choice}), wanted, c);
  };
  const Errors exact = errors(AttendChoice::exact);
  const Errors split = errors(AttendChoice::split_32x2);
  const Errors rounded = errors(AttendChoice::tensor_64x2);
  CAPTURE(exact.largest);
  CAPTURE(split.largest);
  CAPTURE(rounded.largest);
  CHECK(split.largest < 3 * exact.largest);
  CHECK(split.nmse < 5 * exact.nmse);
  CHECK(rounded.largest > 1000 * split.largest);
  CHECK(rounded.beyond > 0);
}

TEST_CASE("cuda: split attention: every layout has the same bits, for rows alone, in pairs and at live positions") {
  Random random;
  CAPTURE(random.seed());
  const AttendCase c{5, 9, 48, 16, 250, 3, Dtype::bf16};
  CAPTURE(c);
  const AttendInput input = random_input(c, random);
  GpuLab lab(random.seed());
  const auto wanted = run_attend(lab, input, c, {.rows = c.rows, .choice = AttendChoice::split_32x2});
  for (const AttendChoice choice : kSplitChoices) {
    CHECK(first_difference(run_attend(lab, input, c, {.rows = c.rows, .choice = choice}), wanted) == wanted.size());
    check_rows_alone(lab, input, c, choice);
  }
}

TEST_CASE("cuda: split attention of many queries cuts a row as of few") {
  Random random;
  CAPTURE(random.seed());
  const AttendCase c{4, kernels::cuda::kUnsplitQueries / 4, 16, 0, 34, 1, Dtype::bf16};
  const AttendInput input = random_input(c, random);
  GpuLab lab(random.seed());
  const auto all = run_attend(lab, input, c, {.rows = c.rows, .choice = AttendChoice::split_32x2});
  const auto last = run_attend(lab, input, c, {.first = 3, .rows = 1, .choice = AttendChoice::split_32x2});
  CHECK(first_difference(last, std::span(all).last(last.size())) == last.size());
}

TEST_CASE("cuda: split attention over many positions, where splits become longer") {
  Random random;
  CAPTURE(random.seed());
  // 128 splits of 32 positions end with the second row: both lengths meet in one block.
  const AttendCase c{3, 2, 16, 0, 128 * 32 - 2, 1, Dtype::bf16};
  const AttendInput input = random_input(c, random);
  GpuLab lab(random.seed());
  const auto all = run_attend(lab, input, c, {.rows = c.rows, .choice = AttendChoice::split_16x2});
  CHECK(errors_of(all, reference(input, c), c).beyond == 0);
  const auto last = run_attend(
      lab, input, c,
      {.first = 2, .rows = 1, .capacity = 163'840, .position = Position::live, .choice = AttendChoice::split_16x2});
  CHECK(first_difference(last, std::span(all).last(last.size())) == last.size());
}

TEST_CASE("cuda: split attention: neither the order of threads and blocks nor where queries lie changes a bit") {
  Random random;
  CAPTURE(random.seed());
  const AttendCase c{3, 5, 48, 16, 150, 2, Dtype::bf16};
  const AttendInput input = random_input(c, random);
  for (const AttendChoice choice : kSplitChoices) {
    CAPTURE(static_cast<int>(choice));
    GpuLab first(1);
    const auto wanted = run_attend(first, input, c, {.rows = c.rows, .choice = choice});
    for (const uint64_t seed : {2, 3, 4}) {
      GpuLab lab(seed);
      const auto got = run_attend(lab, input, c, {.rows = c.rows, .choice = choice, .whole_queries = seed == 2});
      CHECK(first_difference(got, wanted) == wanted.size());
    }
  }
}

TEST_CASE("cuda: split attention: scores beyond the range of exp do no harm") {
  Random random;
  CAPTURE(random.seed());
  const AttendCase c{3, 2, 16, 16, 150, 1e6F, Dtype::bf16};
  GpuLab lab(random.seed());
  for (const float value :
       run_attend(lab, random_input(c, random), c, {.rows = c.rows, .choice = AttendChoice::split_16x2}))
    CHECK(std::isfinite(value));
}

TEST_CASE("cuda: a device says where precision split has nothing to offer") {
  const auto described = [](uint64_t shared_kib, kernels::Precision precision) {
    gpu::EmulatorSettings settings;
    settings.shared_bytes_per_block = shared_kib << 10;
    gpu::configure_emulator(settings);
    const auto device = kernels::make_cuda_device({.precision = precision});
    REQUIRE(device);
    return std::string((*device)->description());
  };
  CHECK(described(163, kernels::Precision::split) == "cuda emulated GPU, sm_90, split");
  CHECK(described(99, kernels::Precision::split) ==
        "cuda emulated GPU, sm_90, split (attention as in exact: 99 KiB of shared memory a block are too little)");
  CHECK(described(99, kernels::Precision::exact) == "cuda emulated GPU, sm_90, exact");
  gpu::configure_emulator({});
}

}  // namespace dspack::test::attend_split_test
