// The FP8 rows of a latent cache, held to their definition: bytes made here from the description in
// kernels/latent_rows.h, with codes found by trying all of them.
#include "kernels/latent_rows.h"

#include <algorithm>
#include <limits>
#include <span>

#include "tests/kernels/lab.h"
#include "tests/kernels/reference.h"
#include "tests/support/cache_rows.h"

namespace dspack::test::latent_rows_test {
namespace {

using Bytes = std::vector<uint8_t>;

struct LatentCase {
  uint32_t latent = 0;
  uint32_t rope = 0;
};

constexpr LatentCase kCases[] = {{512, 64}, {80, 16}, {24, 16}, {33, 10}, {129, 3}, {128, 0}, {1, 2}, {640, 7}};

std::ostream& operator<<(std::ostream& out, const LatentCase& c) {
  return out << "latent " << c.latent << ", rope " << c.rope;
}

/// The code whose value is nearest to `value` (not negative); of two as near the even one.
uint8_t nearest_code(double value) {
  uint8_t best = 0;
  for (uint8_t code = 1; code < 0x7f; ++code) {
    const double further = std::abs(decode_e4m3(code) - value) - std::abs(decode_e4m3(best) - value);
    if (further < 0 || (further == 0 && code % 2 == 0)) best = code;
  }
  return best;
}

template <class T>
void append(Bytes& bytes, T value) {
  const auto* from = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof(value));
}
void fill_up(Bytes& bytes) {
  while (bytes.size() % 16 != 0)
    bytes.push_back(0);
}

float scale_of(std::span<const float> tile) {
  float largest = 0;
  for (const float value : tile) {
    if (std::abs(value) > largest) largest = std::abs(value);
  }
  const float scale = largest / 448;
  return scale == 0 ? 1 : scale;
}

std::vector<std::span<const float>> tiles_of(std::span<const float> latent) {
  std::vector<std::span<const float>> tiles;
  for (size_t begin = 0; begin < latent.size(); begin += 128)
    tiles.push_back(latent.subspan(begin, std::min<size_t>(128, latent.size() - begin)));
  return tiles;
}

/// A row as it is to be stored.
Bytes stored_row(std::span<const float> row, const LatentCase& c) {
  Bytes bytes;
  const auto tiles = tiles_of(row.first(c.latent));
  for (const auto& tile : tiles) {
    for (const float value : tile) {
      const float quotient = std::abs(value) / scale_of(tile);
      const uint8_t code = std::isnan(quotient) ? 0x7f : nearest_code(std::min<double>(quotient, 448));
      bytes.push_back(std::signbit(value) ? code | 0x80 : code);
    }
  }
  fill_up(bytes);
  for (const auto& tile : tiles)
    append(bytes, scale_of(tile));
  fill_up(bytes);
  for (const float value : row.subspan(c.latent))
    append(bytes, f32_to_bf16(value));
  fill_up(bytes);
  return bytes;
}

/// Rows whose tiles differ in size by powers of ten; one tile of zeros, one of numbers without a scale of their own.
std::vector<float> random_rows(const LatentCase& c, uint32_t rows, Random& random) {
  std::vector<float> values;
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t i = 0; i < c.latent + c.rope; ++i) {
      const uint32_t tile = row + i / 128;
      const float size = tile % 7 == 5   ? 0.0F
                         : tile % 7 == 6 ? 1e-44F
                                         : std::pow(10.0F, static_cast<float>(tile % 7) - 3);
      values.push_back(random.normal() * size);
    }
  }
  return values;
}

std::vector<float> with_gaps(const std::vector<float>& values, uint32_t cols, uint32_t stride) {
  std::vector<float> spread;
  for (size_t i = 0; i < values.size(); ++i) {
    spread.push_back(values[i]);
    if (i % cols == cols - 1) spread.resize(spread.size() + stride - cols, poison());
  }
  return spread;
}

constexpr uint32_t kRoom = 9;  // rows

/// Stores `values` from row `first` on, of which the device learns `live` when it runs; all of the cache's bytes.
Bytes store(Lab& lab, const std::vector<float>& values, const LatentCase& c, uint32_t first, uint32_t live) {
  const kernels::LatentShape shape{c.latent, c.rope};
  const uint32_t cols = c.latent + c.rope;
  const uint64_t row_bytes = kernels::fp8_row(shape).bytes;
  const Bytes blank(kRoom * row_bytes, 0xAA);
  const kernels::Slice place = lab.raw(blank.data(), blank.size(), 16);
  const kernels::Rows from{.data = lab.put(with_gaps(values, cols, cols + 3)),
                           .rows = static_cast<uint32_t>(values.size() / cols),
                           .cols = cols,
                           .stride = cols + 3};
  kernels::LivePosition position;
  if (live > 0) position = {.value = lab.put(std::vector<uint32_t>{live}), .limit = kRoom - (first - live)};
  lab.queue().store_latents(place.at((first - live) * row_bytes), shape, from, position);
  return lab.get<uint8_t>(place, blank.size());
}

KERNEL_CASE("store_latents: the bytes of the definition, at known and live positions, and nothing else") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kRows = 5;
  constexpr uint32_t kFirst = 3;
  for (const LatentCase& c : kCases) {
    CAPTURE(c);
    Lab lab(Set::kName);
    const std::vector<float> values = random_rows(c, kRows, random);
    Bytes wanted;
    for (uint32_t row = 0; row < kRows; ++row) {
      const Bytes bytes =
          stored_row(std::span(values).subspan(size_t{row} * (c.latent + c.rope), c.latent + c.rope), c);
      wanted.insert(wanted.end(), bytes.begin(), bytes.end());
    }
    REQUIRE(wanted.size() == kRows * kernels::fp8_row({c.latent, c.rope}).bytes);
    const size_t row_bytes = wanted.size() / kRows;
    wanted.insert(wanted.begin(), kFirst * row_bytes, 0xAA);
    wanted.resize(kRoom * row_bytes, 0xAA);
    for (const uint32_t live : {0U, 2U, kFirst})
      CHECK(store(lab, values, c, kFirst, live) == wanted);
  }
}

KERNEL_CASE("store_latents: what is no finite number comes back as none") {
  SKIP_UNLESS_SET_RUNS();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const LatentCase c{300, 4};
  const uint32_t cols = c.latent + c.rope;
  std::vector<float> values(cols, 2.5F);
  values[3] = nan;
  values[5] = -nan;
  values[140] = -infinity;
  values[141] = nan;
  values[cols - 3] = infinity;
  values[cols - 2] = nan;
  Lab lab(Set::kName);
  const Bytes stored = store(lab, values, c, 0, 0);
  const Bytes wanted = stored_row(values, c);
  // But for the NaN among the rotary keys, which may be any.
  CHECK(std::equal(wanted.begin(), wanted.end() - 16, stored.begin()));
  const std::vector<float> all = decoded_latents(stored, {c.latent, c.rope});
  const std::span<const float> got = std::span(all).first(cols);
  for (uint32_t i = 0; i < cols; ++i) {
    CAPTURE(i);
    const bool is_nan = i == 3 || i == 5 || (i >= 128 && i < 256) || i == cols - 2;
    CHECK(std::isnan(got[i]) == is_nan);
    if (i == cols - 3) {
      CHECK(got[i] == infinity);
    } else if (!is_nan) {
      CHECK(got[i] == doctest::Approx(2.5));
    }
  }
}

KERNEL_CASE("store_fp8_rows: codes with one scale a row, at known and live positions, and nothing else") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kRows = 5;
  constexpr uint32_t kFirst = 3;
  for (const uint32_t cols : {1U, 3U, 32U, 127U, 128U, 130U, 300U}) {
    CAPTURE(cols);
    std::vector<float> values = random.normals(size_t{kRows} * cols);
    for (size_t i = 0; i < values.size(); ++i)  // of a row in the middle nothing but zeros, one without a scale
      values[i] *= i / cols == 2 ? 0.0F : i / cols == 3 ? 1e-44F : std::pow(10.0F, static_cast<float>(i / cols) - 2);
    values.back() = std::nanf("");
    Bytes codes(size_t{kRoom} * cols, 0xAA);
    std::vector<float> scales(kRoom, -1.0F);
    for (size_t i = 0; i < values.size(); ++i) {
      const float scale = scale_of(std::span(values).subspan(i / cols * cols, cols));
      const float quotient = std::abs(values[i]) / scale;
      const uint8_t code = std::isnan(quotient) ? 0x7f : nearest_code(std::min<double>(quotient, 448));
      codes[kFirst * cols + i] = std::signbit(values[i]) ? code | 0x80 : code;
      scales[kFirst + i / cols] = scale;
    }
    for (const uint32_t live : {0U, 2U, kFirst}) {
      Lab lab(Set::kName);
      const Bytes blank(codes.size(), 0xAA);
      const kernels::Slice to = lab.raw(blank.data(), blank.size(), 1);
      const kernels::Slice scales_to = lab.put(std::vector<float>(kRoom, -1.0F));
      kernels::LivePosition position;
      if (live > 0) position = {.value = lab.put(std::vector<uint32_t>{live}), .limit = kRoom - (kFirst - live)};
      lab.queue().store_fp8_rows(
          to.at(uint64_t{kFirst - live} * cols), scales_to.at((kFirst - live) * sizeof(float)),
          {.data = lab.put(with_gaps(values, cols, cols + 3)), .rows = kRows, .cols = cols, .stride = cols + 3},
          position);
      CHECK(lab.get<uint8_t>(to, codes.size()) == codes);
      CHECK(lab.get(scales_to, kRoom) == scales);
    }
  }
}

TEST_CASE("FP8 rows: FlashMLA's layout for V3, and whole pieces of 16 bytes for every shape") {
  const kernels::Fp8Row v3 = kernels::fp8_row({512, 64});
  CHECK(v3.scales_at == 512);
  CHECK(v3.rope_at == 528);
  CHECK(v3.bytes == 656);
  CHECK(kernels::cache_row_bytes(Dtype::f8_e4m3, {512, 64}) == 656);
  CHECK(kernels::cache_row_bytes(Dtype::bf16, {512, 64}) == 1152);
  CHECK(kernels::cache_row_bytes(Dtype::f32, {24, 16}) == 160);
  for (uint32_t latent = 1; latent < 1400; ++latent) {
    const kernels::Fp8Row row = kernels::fp8_row({latent, latent % 67});
    const bool is_whole = row.scales_at % 16 == 0 && row.rope_at % 16 == 0 && row.bytes % 16 == 0;
    const bool has_room = row.scales_at >= latent && (row.rope_at - row.scales_at) * 32 >= latent &&
                          row.bytes - row.rope_at >= latent % 67 * 2;
    if (!is_whole || !has_room) FAIL_CHECK("latent ", latent);
  }
}

}  // namespace
}  // namespace dspack::test::latent_rows_test
