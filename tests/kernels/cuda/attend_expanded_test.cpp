#include "kernels/cuda/attention/attend_expanded.h"

#include <doctest/doctest.h>

#include "kernels/cuda/host/cuda_device.h"
#include "tests/kernels/cuda/attend_lab.h"

namespace dspack::test::attend_expanded_test {
namespace {

namespace cuda = kernels::cuda;
using kernels::Coding;

constexpr double kBf16Roundoff = 0x1p-8;  // 8 significant bits
constexpr uint32_t kQueryGap = 4;         // behind a row of queries, as if cut from a wider one

struct Case {
  uint32_t rows = 1;
  uint32_t heads = 1;
  uint32_t latent = 16;
  uint32_t rope = 16;
  uint32_t nope = 16;
  uint32_t value = 16;
  uint32_t first_position = 0;
  Dtype cache = Dtype::f32;
  Coding coding = Coding::bf16;

  [[nodiscard]] uint32_t key() const { return nope + rope; }
  [[nodiscard]] uint32_t head() const { return nope + value; }
  [[nodiscard]] uint32_t positions() const { return first_position + rows; }
  [[nodiscard]] cuda::ExpandedShape shape() const {
    return {.rows = rows,
            .heads = heads,
            .latent_dim = latent,
            .rope_dim = rope,
            .nope_dim = nope,
            .value_dim = value,
            .positions = positions()};
  }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.rows << " rows from position " << c.first_position << ", " << c.heads << " heads, latent " << c.latent
             << ", rope " << c.rope << ", keys " << c.nope << ", values " << c.value << ", cache " << to_string(c.cache)
             << ", weight " << kernels::facts_of(c.coding).name;
}

struct Input {
  std::vector<float> queries;  // [rows, heads, key] and a gap
  std::vector<float> cache;    // [positions, latent + rope], values of the cache's type
  std::vector<float> weight;   // [heads * head, latent], values of the coding times the scales
  std::vector<float> scales;   // [heads, blocks of 64 columns]
};

constexpr uint32_t kScaleColumns = 64;

/// `value` makes one number after the other.
template <class Value>
Input make_input(const Case& c, const Value& value) {
  Input input;
  const auto fill = [&](std::vector<float>& into, size_t count) {
    for (size_t i = 0; i < count; ++i)
      into.push_back(value());
  };
  fill(input.queries, size_t{c.rows} * (c.heads * c.key() + kQueryGap));
  fill(input.cache, size_t{c.positions()} * (c.latent + c.rope));
  fill(input.weight, size_t{c.heads} * c.head() * c.latent);
  const AttendCase rows{.latent = c.latent, .rope = c.rope};
  if (c.cache == Dtype::f8_e4m3) {
    input.cache = decoded_latents(fp8_rows(input.cache, rows), {.latent_dim = c.latent, .rope_dim = c.rope});
  } else {
    for (float& one : input.cache)
      one = stored_value(one, c.cache);
  }
  for (uint32_t i = 0; i < c.heads * ceil_div(c.latent, kScaleColumns); ++i)
    input.scales.push_back(c.coding == Coding::f8_e4m3 ? std::ldexp(1.0F, static_cast<int>(i % 3) - 1) : 1.0F);
  for (size_t i = 0; i < input.weight.size(); ++i) {
    float& one = input.weight[i];
    if (c.coding == Coding::f8_e4m3) {
      const size_t block = i / c.latent / c.head() * ceil_div(c.latent, kScaleColumns) + i % c.latent / kScaleColumns;
      one = f8_e4m3_to_f32(f32_to_f8_e4m3(one)) * input.scales[block];
    } else {
      one = bf16_to_f32(f32_to_bf16(one));
    }
  }
  return input;
}

const void* put_weight(GpuLab& lab, const Case& c, const Input& input) {
  if (c.coding == Coding::bf16) {
    std::vector<uint16_t> bits;
    for (const float value : input.weight)
      bits.push_back(f32_to_bf16(value));
    return lab.put(bits);
  }
  std::vector<uint8_t> codes;
  for (size_t i = 0; i < input.weight.size(); ++i) {
    const size_t block = i / c.latent / c.head() * ceil_div(c.latent, kScaleColumns) + i % c.latent / kScaleColumns;
    codes.push_back(f32_to_f8_e4m3(input.weight[i] / input.scales[block]));
  }
  return lab.put(codes);
}

std::vector<float> run(GpuLab& lab, const Case& c, const Input& input) {
  cuda::ExpandedAttendTask task;
  task.kv_b.coding = c.coding;
  task.kv_b.out = c.heads * c.head();
  task.kv_b.in = c.latent;
  task.kv_b.planes[kernels::kCodes] = put_weight(lab, c, input);
  if (c.coding == Coding::f8_e4m3) {
    task.kv_b.block_out = c.head();
    task.kv_b.block_in = kScaleColumns;
    task.kv_b.planes[kernels::kScales] = lab.put(input.scales);
  }
  const AttendCase rows{.latent = c.latent, .rope = c.rope, .dtype = c.cache};
  task.cache = put_cache(lab, {.latent = {}, .rope = {}, .cache = input.cache}, rows);
  task.cache_dtype = c.cache;
  task.queries = {.data = lab.put(input.queries), .stride = uint64_t{c.heads} * c.key() + kQueryGap};
  const size_t count = size_t{c.rows} * c.heads * c.value;
  task.out = lab.poisoned(count);
  task.scratch = lab.put(std::vector<std::byte>(cuda::expanded_scratch_bytes(c.shape()), std::byte{0xff}));
  task.shape = c.shape();
  task.first_position = c.first_position;
  task.scale = 1.0F / std::sqrt(static_cast<float>(c.key()));
  REQUIRE(cuda::fits_expanded(c.shape(), cuda::form_of(task.kv_b), *gpu::open_device(0)));
  cuda::attend_expanded(lab.stream(), task);
  return lab.get(static_cast<const float*>(task.out), count);
}

/// In double precision.
Reference reference(const Case& c, const Input& input) {
  Reference result;
  const size_t row = c.latent + c.rope;
  Doubles made(size_t{c.positions()} * c.heads * c.head());  // [positions, heads, head]
  for (size_t i = 0; i < made.size(); ++i) {
    const size_t position = i / (c.heads * c.head());
    const size_t out = i % (c.heads * c.head());
    for (size_t j = 0; j < c.latent; ++j)
      made[i] += static_cast<double>(input.weight[out * c.latent + j]) * input.cache[position * row + j];
  }
  const double scale = 1.0F / std::sqrt(static_cast<float>(c.key()));
  for (size_t q = 0; q < size_t{c.rows} * c.heads; ++q) {
    const float* query = input.queries.data() + q / c.heads * (c.heads * c.key() + kQueryGap) + q % c.heads * c.key();
    Doubles scaled;
    double largest = 0;
    for (size_t p = 0; p < c.first_position + q / c.heads + 1; ++p) {
      const double* key = made.data() + (p * c.heads + q % c.heads) * c.head();
      Sum sum;
      for (size_t i = 0; i < c.nope; ++i)
        sum.add(query[i] * key[i]);
      for (size_t i = 0; i < c.rope; ++i)
        sum.add(static_cast<double>(query[c.nope + i]) * input.cache[p * row + c.latent + i]);
      scaled.push_back(sum.value * scale);
      largest = std::max(largest, sum.magnitude * scale);
    }
    result.products.push_back(largest);
    const Doubles weights = softmax(scaled);
    for (size_t i = 0; i < c.value; ++i) {
      Sum sum;
      for (size_t p = 0; p < weights.size(); ++p)
        sum.add(weights[p] * made[(p * c.heads + q % c.heads) * c.head() + c.nope + i]);
      result.values.push_back(sum.value);
      result.magnitudes.push_back(sum.magnitude);
    }
  }
  return result;
}

/// Whole numbers, so that nothing is rounded but the softmax weights (as in attend_tensor_test.cpp) and FP32 sums.
void check_whole_numbers(const Case& c, Random& random) {
  CAPTURE(c);
  GpuLab lab(random.seed());
  const Input input = make_input(c, [&] { return static_cast<float>(random.below(3)) - 1.0F; });
  const auto got = run(lab, c, input);
  const Reference wanted = reference(c, input);
  Doubles bound;
  for (size_t i = 0; i < wanted.values.size(); ++i) {
    const double score_error = (c.key() + 2.0) * kRoundoff * wanted.products[i / c.value];
    const double weight_error = std::exp(2 * score_error) * (1 + kBf16Roundoff) - 1;
    bound.push_back((weight_error + 2 * (c.positions() + 10.0) * kRoundoff) * wanted.magnitudes[i]);
  }
  const ErrorReport report = compare(got, wanted.values, c.value);
  CAPTURE(report);
  CHECK_FALSE(report.count_mismatch);
  CHECK(report.not_a_number == 0);
  CHECK(beyond_bound(got, wanted.values, bound) == 0);
}

/// Against the operands as they are. Latents, keys and values, queries and weights are each wrong by e with
/// e^2 = u'^2 / 3 in the mean at most; a score of queries and keys, whose latents were rounded before them, by three of
/// these, a value by two, the weight by one. The factor 2 is for chance.
void check_operands(const Case& c, Random& random) {
  CAPTURE(c);
  GpuLab lab(random.seed());
  const double scale = 1 / std::sqrt(static_cast<double>(c.latent));
  Input input = make_input(c, [&] { return random.normal(); });
  for (float& one : input.weight)
    one = static_cast<float>(one * std::exp2(std::round(std::log2(scale))));
  for (float& one : input.scales)
    one = static_cast<float>(one * std::exp2(std::round(std::log2(scale))));
  const ErrorReport report = compare(run(lab, c, input), reference(c, input).values, c.value);
  CAPTURE(report);
  CHECK(report.not_a_number == 0);
  CHECK(report.nmse < 2 * (3 + 3) * kBf16Roundoff * kBf16Roundoff / 3);
}

}  // namespace

TEST_CASE("cuda: expanded attention of whole numbers, whatever the cache and the weight") {
  Random random;
  CAPTURE(random.seed());
  for (const Dtype cache : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const Coding coding : {Coding::bf16, Coding::f8_e4m3})
      check_whole_numbers({3, 2, 64, 16, 32, 48, 5, cache, coding}, random);
  }
}

TEST_CASE(
    "cuda: expanded attention of whole numbers, in tiles of rows and positions that are full, begun and crossed") {
  Random random;
  CAPTURE(random.seed());
  for (const Case& c : {Case{1, 1, 64, 16, 16, 16, 0}, Case{64, 1, 64, 16, 16, 16, 0}, Case{65, 2, 64, 32, 16, 16, 62},
                        Case{130, 1, 64, 16, 48, 32, 1}, Case{17, 3, 64, 16, 16, 32, 191}})
    check_whole_numbers(c, random);
}

TEST_CASE("cuda: expanded attention agrees with double precision within the rounding to BF16") {
  Random random;
  CAPTURE(random.seed());
  for (const Dtype cache : {Dtype::f32, Dtype::f8_e4m3}) {
    check_operands({20, 2, 128, 16, 32, 32, 50, cache, Coding::bf16}, random);
    check_operands({20, 2, 128, 16, 32, 32, 50, cache, Coding::f8_e4m3}, random);
  }
}

TEST_CASE("cuda: expanded attention at DeepSeek-V3's sizes") {
  Random random;
  CAPTURE(random.seed());
  check_operands({66, 2, 512, 64, 128, 128, 3, Dtype::bf16, Coding::f8_e4m3}, random);
}

TEST_CASE(
    "cuda queue: a prompt's rows are attended to with keys and values of each head, but not in exact, nor few rows") {
  Random random;
  CAPTURE(random.seed());
  for (const auto& [precision, rows, is_expanded] :
       {std::tuple{kernels::Precision::bf16, 70U, true}, std::tuple{kernels::Precision::fp8, 70U, true},
        std::tuple{kernels::Precision::bf16, 63U, false}, std::tuple{kernels::Precision::exact, 70U, false}}) {
    const Case c{rows, 2, 64, 16, 16, 32, 3, Dtype::f32, Coding::bf16};
    CAPTURE(c);
    gpu::configure_emulator({.seed = random.seed()});
    const auto device = kernels::make_cuda_device({.precision = precision});
    REQUIRE(device);
    const auto queue = (*device)->make_queue();
    std::vector<std::unique_ptr<kernels::Buffer>> buffers;
    const auto put = [&](std::span<const std::byte> bytes) {
      buffers.push_back(std::move(*(*device)->allocate(bytes.size())));
      const kernels::Slice place{.buffer = buffers.back().get(), .offset_bytes = 0};
      queue->upload(place, bytes);
      queue->synchronize();
      return place;
    };
    const Input input = make_input(c, [&] { return static_cast<float>(random.below(3)) - 1.0F; });
    std::vector<uint16_t> weight;
    for (const float value : input.weight)
      weight.push_back(f32_to_bf16(value));
    kernels::ExpandedAttendArgs args;
    args.kv_b.coding = c.coding;
    args.kv_b.out = c.heads * c.head();
    args.kv_b.in = c.latent;
    args.kv_b.planes[kernels::kCodes] = put(std::as_bytes(std::span(weight)));
    args.queries = {.data = put(std::as_bytes(std::span(input.queries))),
                    .rows = c.rows,
                    .cols = c.heads * c.key(),
                    .stride = c.heads * c.key() + kQueryGap};
    args.cache = put(std::as_bytes(std::span(input.cache)));
    std::vector<float> got(size_t{c.rows} * c.heads * c.value, 7);
    args.out = put(std::as_bytes(std::span(got)));
    args.heads = c.heads;
    args.latent_dim = c.latent;
    args.rope_dim = c.rope;
    args.nope_dim = c.nope;
    args.value_dim = c.value;
    args.first_position = c.first_position;
    args.scale = 1.0F / std::sqrt(static_cast<float>(c.key()));
    // Angles of zero.
    std::vector<float> cos_sin;
    for (uint32_t i = 0; i < c.positions() * c.rope / 2; ++i)
      cos_sin.insert(cos_sin.end(), {1, 0});
    const kernels::RopeArgs rope{.data = args.queries.data.at(c.nope * sizeof(float)),
                                 .rows = c.rows,
                                 .heads = c.heads,
                                 .dim = c.rope,
                                 .head_stride = c.key(),
                                 .row_stride = args.queries.stride,
                                 .first_position = c.first_position,
                                 .cos_sin = put(std::as_bytes(std::span(cos_sin)))};
    CHECK(queue->attend_expanded(rope, args) == is_expanded);
    queue->download(std::as_writable_bytes(std::span(got)), args.out);
    queue->synchronize();
    if (is_expanded) {
      CHECK(compare(got, reference(c, input).values, c.value).nmse < kBf16Roundoff * kBf16Roundoff);
    } else {
      CHECK(std::ranges::all_of(got, [](float value) { return value == 7; }));
    }
  }
}

TEST_CASE("cuda: expanded attention is planned within bounds, and its scratch grows with every number") {
  const cuda::ExpandedShape v3{.rows = 4096,
                               .heads = 128,
                               .latent_dim = 512,
                               .rope_dim = 64,
                               .nope_dim = 128,
                               .value_dim = 128,
                               .positions = 4096};
  CHECK(cuda::plan_expanded(v3).heads == 48);   // of 2 MiB each
  CHECK(cuda::plan_expanded(v3).slice == 320);  // of 48 KiB each
  constexpr uint64_t kMiB = 1 << 20;
  CHECK(cuda::expanded_scratch_bytes(v3) < 135 * kMiB);
  cuda::ExpandedShape longest = v3;
  longest.positions = 163'840;
  CHECK(cuda::plan_expanded(longest).heads == 1);
  for (uint32_t cuda::ExpandedShape::*number :
       {&cuda::ExpandedShape::heads, &cuda::ExpandedShape::positions, &cuda::ExpandedShape::nope_dim,
        &cuda::ExpandedShape::rope_dim, &cuda::ExpandedShape::latent_dim, &cuda::ExpandedShape::value_dim}) {
    uint64_t before = 0;
    for (const uint32_t value : {16U, 32U, 64U, 128U, 512U, 4096U}) {
      cuda::ExpandedShape shape = v3;
      shape.*number = value;
      CHECK(cuda::expanded_scratch_bytes(shape) >= before);
      before = cuda::expanded_scratch_bytes(shape);
    }
  }
}

TEST_CASE("cuda: expanded attention pays for a prompt of V3 from some 170 rows on") {
  cuda::ExpandedShape v3{.rows = 1,
                         .heads = 128,
                         .latent_dim = 512,
                         .rope_dim = 64,
                         .nope_dim = 128,
                         .value_dim = 128,
                         .positions = 100'000};
  const auto pays_from = [&](uint32_t before) {
    for (v3.rows = 1; v3.rows < 1000; ++v3.rows) {
      v3.positions = before + v3.rows;
      if (cuda::pays_to_expand(v3)) return v3.rows;
    }
    return v3.rows;
  };
  CHECK(pays_from(0) == 64);
  CHECK(pays_from(4096) > 150);
  CHECK(pays_from(4096) < 172);
  CHECK(pays_from(100'000) > 165);
  CHECK(pays_from(100'000) < 175);
}

}  // namespace dspack::test::attend_expanded_test
