// The bits of results are the same on every processor family. Tests of another family run elsewhere, so what one gives
// is compared with digests that are written down here; inputs are made by exact arithmetic alone.
#include "kernels/cpu/cpu_device.h"
#include "tests/kernels/weights.h"

namespace dspack::test::same_bits_test {
namespace {

using kernels::Rows;

/// A linear congruential sequence (Numerical Recipes), of which the high bits are used.
class Numbers {
 public:
  uint32_t below(uint32_t bound) { return next() % bound; }
  uint32_t sign() { return below(2); }
  /// A multiple of 2^-23 from -1 to 1.
  float value() { return static_cast<float>(static_cast<int32_t>(next()) - (1 << 23)) / static_cast<float>(1 << 23); }
  std::vector<float> values(size_t count) {
    std::vector<float> made(count);
    for (float& one : made)
      one = value();
    return made;
  }

 private:
  uint32_t next() {
    state_ = state_ * 1664525U + 1013904223U;
    return state_ >> 8;
  }
  uint32_t state_ = 1;
};

/// 64-bit FNV-1a of the results' bytes, of little-endian processors.
class Digest {
 public:
  void add(const std::vector<float>& results) {
    for (const float result : results) {
      for (uint32_t bits = std::bit_cast<uint32_t>(result), i = 0; i < 4; ++i, bits >>= 8)
        value_ = (value_ ^ (bits & 0xff)) * 0x100000001b3ULL;
    }
  }
  [[nodiscard]] uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325ULL;
};

void add_element(Dtype dtype, std::vector<uint8_t>& bytes, Numbers& numbers) {
  const auto append = [&](auto bits) {
    bytes.resize(bytes.size() + sizeof bits);
    store_bits(bytes, bytes.size() / sizeof bits - 1, bits, 0);
  };
  const uint32_t sign = numbers.sign();
  switch (dtype) {
    case Dtype::f8_e4m3: return append(static_cast<uint8_t>(numbers.below(0x7f) | sign << 7));
    case Dtype::i8: return append(static_cast<uint8_t>(numbers.below(0x100)));
    case Dtype::f16: return append(static_cast<uint16_t>(numbers.below(18 << 10) | sign << 15));
    case Dtype::bf16: return append(static_cast<uint16_t>(std::bit_cast<uint32_t>(numbers.value()) >> 16));
    default: return append(numbers.value());
  }
}

Dtype type_of(kernels::ScaleCoding scale) {
  switch (scale) {
    case kernels::ScaleCoding::bf16: return Dtype::bf16;
    case kernels::ScaleCoding::f16: return Dtype::f16;
    case kernels::ScaleCoding::f8_e4m3: return Dtype::f8_e4m3;
    default: return Dtype::f32;
  }
}

/// As random_weight makes them, without the values that they mean.
RandomWeight weight_of(const WeightCase& shape, Numbers& numbers) {
  RandomWeight weight{.bytes = {}, .scales = {}, .matrix = {}, .shape = shape};
  if (!shape.packed) {
    for (size_t i = 0; i < size_t{shape.out} * shape.in; ++i)
      add_element(shape.dtype, weight.bytes, numbers);
  } else {
    for (size_t i = 0; i < shape.out * ceil_div(shape.in, 2); ++i)
      weight.bytes.push_back(static_cast<uint8_t>(numbers.below(256)));
  }
  if (shape.block_out == 0) return weight;
  const size_t scales = ceil_div(shape.out, shape.block_out) * ceil_div(shape.in, shape.block_in);
  for (size_t i = 0; i < scales; ++i) {
    if (!shape.packed) {
      weight.scales.push_back(numbers.value());
    } else if (shape.packed->scale == kernels::ScaleCoding::f8_e8m0) {
      weight.packed_scales.push_back(static_cast<uint8_t>(110 + numbers.below(10)));
    } else {
      add_element(type_of(shape.packed->scale), weight.packed_scales, numbers);
    }
  }
  weight.global = 0.37F;
  if (kernels::facts_of(form_of(shape).coding).has_zeros) weight.zeros.resize(scales, 7);
  return weight;
}

/// Of every type, with blocks of scales that end raggedly, and codes of four bits.
std::vector<WeightCase> weight_cases() {
  std::vector<WeightCase> cases;
  for (const Dtype dtype : kWeightTypes) {
    cases.push_back({dtype, 37, 301, 0, 0});
    cases.push_back({dtype, 70, 301, 64, 128});
  }
  for (const PackedCodes& packed : kPackedCodes) {
    cases.push_back({.out = 70, .in = 320, .block_out = 1, .block_in = 32, .packed = packed});
    cases.push_back({.out = 37, .in = 310, .block_out = 1, .block_in = 48, .packed = packed});
  }
  return cases;
}

uint64_t digest_of_products(Lab& lab, const std::vector<WeightCase>& cases) {
  Numbers numbers;
  Digest digest;
  for (const WeightCase& shape : cases) {
    const RandomWeight weight = weight_of(shape, numbers);
    for (const uint32_t rows : {1U, 3U, 39U}) {
      const kernels::Slice x = lab.put(numbers.values(size_t{rows} * shape.in));
      const kernels::Slice y = lab.poisoned(size_t{rows} * shape.out);
      lab.queue().linear(weight.put(lab), {x, rows, shape.in, shape.in}, {y, rows, shape.out, shape.out});
      digest.add(lab.get(y, size_t{rows} * shape.out));
    }
  }
  return digest.value();
}

KERNEL_CASE("same bits on every processor family: products") {
  SKIP_UNLESS_SET_RUNS();
  Lab lab(Set::kName);
  CHECK(digest_of_products(lab, weight_cases()) == 10797837830726734673ULL);
}

KERNEL_CASE("same bits on every processor family: products in precision bf16") {
  SKIP_UNLESS_SET_RUNS();
  auto device =
      kernels::make_cpu_device({.threads = 2, .instruction_set = Set::kName, .precision = kernels::Precision::bf16});
  REQUIRE(device.has_value());
  Lab lab(Set::kName, std::move(*device));
  CHECK(digest_of_products(lab, {{Dtype::f8_e4m3, 37, 301, 128, 128}, {Dtype::bf16, 70, 301, 0, 0}}) ==
        1668234846456026057ULL);
}

KERNEL_CASE("same bits on every processor family: sums of columns") {
  SKIP_UNLESS_SET_RUNS();
  Lab lab(Set::kName);
  Numbers numbers;
  Digest digest;
  for (const WeightCase& shape : weight_cases()) {
    const RandomWeight weight = weight_of(shape, numbers);
    constexpr uint32_t kRows = 3;
    const kernels::Slice y = lab.poisoned(size_t{kRows} * shape.in);
    lab.queue().head_linear_transposed({.weight = weight.put(lab),
                                        .heads = 1,
                                        .head_rows = shape.out,
                                        .first_row = 0,
                                        .rows_used = shape.out,
                                        .x = lab.put(numbers.values(size_t{kRows} * shape.out)),
                                        .x_row_stride = shape.out,
                                        .x_head_stride = shape.out,
                                        .y = y,
                                        .y_row_stride = shape.in,
                                        .y_head_stride = shape.in,
                                        .rows = kRows});
    digest.add(lab.get(y, size_t{kRows} * shape.in));
  }
  CHECK(digest.value() == 13563982510028191041ULL);
}

KERNEL_CASE("same bits on every processor family: attention over every type of cache") {
  SKIP_UNLESS_SET_RUNS();
  Lab lab(Set::kName);
  Numbers numbers;
  Digest digest;
  constexpr uint32_t kRows = 3, kHeads = 5, kLatent = 150, kRope = 24, kPositions = 77;
  constexpr uint32_t kCols = kLatent + kRope;
  const Rows keys{lab.put(numbers.values(size_t{kPositions} * kCols)), kPositions, kCols, kCols};
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8_e4m3}) {
    const kernels::LatentShape shape{.latent_dim = kLatent, .rope_dim = kRope};
    const std::vector<uint8_t> blank(kPositions * cache_row_bytes(dtype, shape));
    const kernels::Slice cache = lab.raw(blank.data(), blank.size(), 16);
    if (dtype == Dtype::f8_e4m3) {
      lab.queue().store_latents(cache, shape, keys);
    } else {
      lab.queue().store_rows(cache, dtype, keys);
    }
    const kernels::Slice out = lab.poisoned(size_t{kRows} * kHeads * kLatent);
    lab.queue().mla_attend({.query_latent = lab.put(numbers.values(size_t{kRows} * kHeads * kLatent)),
                            .query_rope = lab.put(numbers.values(size_t{kRows} * kHeads * kRope)),
                            .cache = cache,
                            .out = out,
                            .rows = kRows,
                            .heads = kHeads,
                            .latent_dim = kLatent,
                            .rope_dim = kRope,
                            .rope_row_stride = kHeads * kRope,
                            .rope_head_stride = kRope,
                            .first_position = kPositions - kRows,
                            .scale = 0.5F,
                            .cache_dtype = dtype});
    digest.add(lab.get(out, size_t{kRows} * kHeads * kLatent));
  }
  CHECK(digest.value() == 7569712082567982061ULL);
}

KERNEL_CASE("same bits on every processor family: norm, activation and sums over rows") {
  SKIP_UNLESS_SET_RUNS();
  Lab lab(Set::kName);
  Numbers numbers;
  Digest digest;
  constexpr uint32_t kCount = 4, kCols = 301, kTopK = 3;
  const auto rows_of = [&](uint32_t count, float factor) {
    auto values = numbers.values(size_t{count} * kCols);
    for (float& value : values)
      value *= factor;
    return Rows{lab.put(values), count, kCols, kCols};
  };
  const auto add = [&](const Rows& rows) { digest.add(lab.get(rows.data, size_t{rows.rows} * kCols)); };
  const Rows x = rows_of(kCount, 64);  // arguments of exp
  const Rows y = rows_of(kCount, 1);
  lab.queue().rms_norm(x, lab.put(numbers.values(kCols)), 1e-6F, y);
  add(y);
  lab.queue().silu_multiply(x, y);
  add(x);
  lab.queue().add(y, x);
  add(y);
  const Rows parts = rows_of(kCount * kTopK, 1);
  lab.queue().combine(y, parts, lab.put(numbers.values(size_t{kCount} * kTopK)), kTopK);
  add(y);
  CHECK(digest.value() == 16041824362997829456ULL);
}

}  // namespace
}  // namespace dspack::test::same_bits_test
