// Operations whose position is read when they run do what they do when it is known before.
#include <limits>

#include "tests/kernels/lab.h"

namespace dspack::test::live_position_test {
namespace {

constexpr uint32_t kPositions = 24;
constexpr uint32_t kRows = 3;

kernels::LivePosition live_at(Lab& lab, uint32_t position) {
  return {.value = lab.raw(reinterpret_cast<const uint8_t*>(&position), sizeof position, sizeof position),
          .limit = kPositions};
}

TEST_CASE("live position: rope turns as at the same known position") {
  Random random;
  INFO("seed ", random.seed());
  constexpr uint32_t kDim = 8;
  Lab lab("scalar", 2);
  const std::vector<float> values = random.normals(size_t{kRows} * kDim);
  const std::vector<float> table = random.normals(size_t{kPositions} * kDim);
  const auto turned = [&](uint32_t first, const kernels::LivePosition& live) {
    const kernels::Slice data = lab.put(values);
    lab.queue().rope({.data = data,
                      .rows = kRows,
                      .heads = 1,
                      .dim = kDim,
                      .head_stride = kDim,
                      .row_stride = kDim,
                      .first_position = first,
                      .cos_sin = lab.put(table),
                      .live = live});
    return lab.get(data, values.size());
  };
  const std::vector<float> known = turned(kPositions - kRows, {});
  CHECK(turned(0, live_at(lab, kPositions - kRows)) == known);  // the last that there is room for
  CHECK(turned(4, live_at(lab, kPositions - kRows - 4)) == known);
  CHECK(turned(0, live_at(lab, 1)) != known);
}

TEST_CASE("live position: attention sees as many cached rows as at the same known position") {
  Random random;
  INFO("seed ", random.seed());
  constexpr uint32_t kLatent = 16;
  constexpr uint32_t kRope = 4;
  constexpr uint32_t kHeads = 2;
  Lab lab("scalar", 2);
  const kernels::Slice latent = lab.put(random.normals(size_t{kRows} * kHeads * kLatent));
  const kernels::Slice rope = lab.put(random.normals(size_t{kRows} * kHeads * kRope));
  const kernels::Slice cache = lab.put(random.normals(size_t{kPositions} * (kLatent + kRope)));
  const auto attended = [&](uint32_t first, const kernels::LivePosition& live) {
    const size_t count = size_t{kRows} * kHeads * kLatent;
    const kernels::Slice out = lab.poisoned(count);
    lab.queue().mla_attend({.query_latent = latent,
                            .query_rope = rope,
                            .cache = cache,
                            .out = out,
                            .rows = kRows,
                            .heads = kHeads,
                            .latent_dim = kLatent,
                            .rope_dim = kRope,
                            .rope_row_stride = kHeads * kRope,
                            .rope_head_stride = kRope,
                            .first_position = first,
                            .scale = 0.25F,
                            .live = live});
    return lab.get(out, count);
  };
  for (const uint32_t position : {0U, 1U, kPositions - kRows}) {
    CAPTURE(position);
    CHECK(attended(0, live_at(lab, position)) == attended(position, {}));
  }
  CHECK(attended(2, live_at(lab, 5)) == attended(7, {}));
}

TEST_CASE("live position: rows are stored behind the place, and nowhere else") {
  Random random;
  INFO("seed ", random.seed());
  constexpr uint32_t kCols = 5;
  Lab lab("scalar", 2);
  const kernels::Rows rows{
      .data = lab.put(random.normals(size_t{kRows} * kCols)), .rows = kRows, .cols = kCols, .stride = kCols};
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    CAPTURE(to_string(dtype));
    const uint64_t row_bytes = uint64_t{kCols} * (bits_of(dtype) / 8);
    const std::vector<uint8_t> blank(kPositions * row_bytes, 0xA5);
    const auto stored = [&](uint32_t first, const kernels::LivePosition& live) {
      const kernels::Slice place = lab.raw(blank.data(), blank.size(), sizeof(float));
      lab.queue().store_rows(place.at(first * row_bytes), dtype, rows, live);
      std::vector<std::byte> bytes(blank.size());
      lab.queue().download(bytes, place);
      lab.queue().synchronize();
      return bytes;
    };
    CHECK(stored(0, live_at(lab, kPositions - kRows)) == stored(kPositions - kRows, {}));
    CHECK(stored(0, live_at(lab, 7)) == stored(7, {}));
  }
}

TEST_CASE("rows stored in F16: what is beyond its largest number becomes that, and infinities stay") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{65504, 65519, -65520, 1e30F, -1e30F, kInfinity, -kInfinity};
  const std::vector<float> wanted{65504, 65504, -65504, 65504, -65504, kInfinity, -kInfinity};
  Lab lab("scalar", 1);
  const auto cols = static_cast<uint32_t>(values.size());
  const kernels::Slice place = lab.raw(std::vector<uint8_t>(cols * 2).data(), uint64_t{cols} * 2, sizeof(float));
  lab.queue().store_rows(place, Dtype::f16, {.data = lab.put(values), .rows = 1, .cols = cols, .stride = cols});
  std::vector<uint16_t> bits(cols);
  lab.queue().download(std::as_writable_bytes(std::span(bits)), place);
  lab.queue().synchronize();
  for (uint32_t i = 0; i < cols; ++i)
    CHECK(f16_to_f32(bits[i]) == wanted[i]);
}

TEST_CASE("argmax: the lowest of equals, and of a row with NaN or infinity, or without a number, none") {
  Lab lab("scalar", 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1,         3,         3,         2,          //
                                     -5,        -5,        -7,        -6,         //
                                     1,         nan,       infinity,  nan,        //
                                     nan,       0,         1,         infinity,   //
                                     5,         infinity,  1,         2,          //
                                     -infinity, -infinity, -1e38F,    -infinity,  //
                                     -infinity, -infinity, -infinity, -infinity};
  const kernels::Slice ids = lab.poisoned(7);
  lab.queue().argmax({.data = lab.put(values), .rows = 7, .cols = 4, .stride = 4}, ids);
  std::vector<uint32_t> found(7);
  lab.queue().download(std::as_writable_bytes(std::span(found)), ids);
  lab.queue().synchronize();
  CHECK(found ==
        std::vector<uint32_t>{1, 0, kernels::kNoToken, kernels::kNoToken, kernels::kNoToken, 2, kernels::kNoToken});
}

}  // namespace
}  // namespace dspack::test::live_position_test
