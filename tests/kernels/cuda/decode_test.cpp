#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "kernels/cuda/device/decode.cuh"
#include "tests/kernels/reference.h"

namespace dspack::test::decode_test {
namespace {

namespace device = kernels::cuda::device;

template <class Stored>
__global__ void decode_kernel(const uint4* bytes, float* quarters, float* single) {
  const unsigned at = gpu::block_index().x;
  for (unsigned quarter = 0; quarter < Stored::kQuarters; ++quarter) {
    float values[4];
    Stored::decode(bytes[at], quarter, values);
    for (unsigned i = 0; i < 4; ++i)
      quarters[at * Stored::kPer16 + quarter * 4 + i] = values[i];
  }
  for (unsigned i = 0; i < Stored::kPer16; ++i)
    single[at * Stored::kPer16 + i] = Stored::decode_one(bytes, at * Stored::kPer16 + i);
}

/// Every code once, by both ways.
template <class Stored, class Bits>
void check_all_codes(double (*reference)(Bits)) {
  constexpr size_t kCodes = size_t{1} << (8 * sizeof(Bits));
  std::vector<uint4> bytes(kCodes * sizeof(Bits) / 16);
  for (size_t code = 0; code < kCodes; ++code) {
    const auto bits = static_cast<Bits>(code);
    std::memcpy(reinterpret_cast<std::byte*>(bytes.data()) + code * sizeof(Bits), &bits, sizeof(Bits));
  }
  std::vector<float> quarters(kCodes);
  std::vector<float> single(kCodes);
  const auto stream = gpu::make_stream(0);
  gpu::launch(*stream, {.grid_x = static_cast<unsigned>(bytes.size()), .threads = 32}, decode_kernel<Stored>,
              bytes.data(), quarters.data(), single.data());
  stream->synchronize();
  size_t wrong = 0;
  for (size_t code = 0; code < kCodes; ++code) {
    const double wanted = reference(static_cast<Bits>(code));
    for (const float got : {quarters[code], single[code]}) {
      const bool same = std::isnan(wanted) ? std::isnan(got) : static_cast<double>(got) == wanted;
      if (!same) ++wrong;
    }
  }
  CHECK(wrong == 0);
}

/// Every code of four bits, in either half of a byte.
template <class Stored>
void check_nibbles(double (*reference)(uint32_t)) {
  std::vector<uint4> bytes(16);
  for (size_t i = 0; i < 256; ++i)
    reinterpret_cast<uint8_t*>(bytes.data())[i] = static_cast<uint8_t>(i);
  std::vector<float> quarters(512);
  std::vector<float> single(512);
  const auto stream = gpu::make_stream(0);
  gpu::launch(*stream, {.grid_x = 16, .threads = 32}, decode_kernel<Stored>, bytes.data(), quarters.data(),
              single.data());
  stream->synchronize();
  size_t wrong = 0;
  for (size_t i = 0; i < 512; ++i) {
    const double wanted = reference(static_cast<uint32_t>(i % 2 == 0 ? i / 2 % 16 : i / 2 / 16));
    if (static_cast<double>(quarters[i]) != wanted || static_cast<double>(single[i]) != wanted) ++wrong;
  }
  CHECK(wrong == 0);
}

double half_or_nan(uint16_t bits) {
  if ((bits & 0x7c00) != 0x7c00) return decode_half(bits);
  if ((bits & 0x3ff) != 0) return std::numeric_limits<double>::quiet_NaN();
  return (bits & 0x8000) != 0 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
}

double bfloat_or_nan(uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(uint32_t{bits} << 16));
}

}  // namespace

TEST_CASE("cuda: every code of every stored type is decoded exactly") {
  check_all_codes<device::StoredF8, uint8_t>(decode_e4m3);
  check_all_codes<device::StoredI8, uint8_t>([](uint8_t code) { return code < 128 ? code : code - 256.0; });
  check_nibbles<device::StoredI4>([](uint32_t code) { return code - 8.0; });
  check_nibbles<device::StoredE2m1>([](uint32_t code) {
    constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return code < 8 ? kValues[code] : -kValues[code - 8];
  });
  check_all_codes<device::StoredF16, uint16_t>(half_or_nan);
  check_all_codes<device::StoredBf16, uint16_t>(bfloat_or_nan);
}

}  // namespace dspack::test::decode_test
