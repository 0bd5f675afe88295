// Inputs of products in precision int8: how x is rounded, and how it lies in memory. For the instruction set files only
// (see table.inl.h); int8.inl.h has the definition.
#pragma once

#include "kernels/cpu/dot_tile.inl.h"
#include "kernels/cpu/ops_table.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

constexpr uint32_t kQuantColumns = 32;
constexpr uint32_t kRunGroups = 4;
constexpr uint32_t kRunColumns = kRunGroups * kQuantColumns;

inline uint32_t runs_of(uint32_t in) {
  return (in + kRunColumns - 1) / kRunColumns;
}

/// Most rows of x by which weights stream; more share pieces of weights.
template <class V>
constexpr uint32_t kMostStreamed = 2 * V::kInt8StreamRows;
/// Rows of x that are laid out together for pieces of weights.
constexpr uint32_t kQuantRows = 4;

/// x as it is laid out, `kRows` rows together: codes [run][column][row], where columns of a run are ordered as the
/// codes want them, and for pieces in fours; scales of groups [run][group][row]; and for each the negated sum of its
/// codes.
template <uint32_t kRows, class Int8 = const int8_t, class Float = const float, class Int32 = const int32_t,
          class Byte = const std::byte>
struct QuantRows {
  static constexpr uint32_t kRunCodes = kRunColumns * kRows;
  static constexpr uint32_t kRunScales = kRunGroups * kRows;
  Int8* codes;
  Float* scales;
  Int32* minus;

  QuantRows(Byte* at, uint32_t runs)
      : codes(reinterpret_cast<Int8*>(at)),
        scales(reinterpret_cast<Float*>(at + size_t{runs} * kRunCodes)),
        minus(reinterpret_cast<Int32*>(scales + size_t{runs} * kRunScales)) {}
  /// From one such layout to the next.
  static constexpr uint64_t bytes(uint32_t in) {
    const uint64_t all = uint64_t{runs_of(in)} * (kRunCodes + kRunScales * (sizeof(float) + sizeof(int32_t)));
    return (all + 63) / 64 * 64;
  }
};
template <uint32_t kRows>
using QuantTarget = QuantRows<kRows, int8_t, float, int32_t, std::byte>;

template <class V>
uint64_t int8_x_bytes(uint32_t rows, uint32_t in) {
  if (rows <= kMostStreamed<V>) return rows * QuantRows<1>::bytes(in);
  return (rows + kQuantRows - 1) / kQuantRows * QuantRows<kQuantRows>::bytes(in);
}

/// Quantises `count` values, and zeros for the rest of a group.
inline void quantise_group(const float* from, uint32_t count, int8_t (&codes)[kQuantColumns], float& scale,
                           int32_t& minus) {
  constexpr uint32_t kInfinity = 0x7f800000U;
  constexpr uint32_t kTiny = (127U - 100U) << 23U;
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: the low bits of a sum with it are the rounded integer
  alignas(64) float values[kQuantColumns] = {};
  __builtin_memcpy(values, from, size_t{count} * sizeof(float));
  alignas(64) uint32_t bits[kQuantColumns];
  __builtin_memcpy(bits, values, sizeof bits);
  uint32_t most = 0;
  for (const uint32_t one : bits) {
    const uint32_t magnitude = one & 0x7fffffffU;
    most = magnitude > most ? magnitude : most;
  }
  minus = 0;
  if (most < kTiny || most >= kInfinity) {
    __builtin_memset(codes, 0, sizeof codes);
    scale = most < kTiny ? 0.0F : __builtin_nanf("");
    return;
  }
  float largest = 0;
  __builtin_memcpy(&largest, &most, sizeof largest);
  scale = largest / 127.0F;
  const float factor = 127.0F / largest;
  for (float& value : values)
    value = value * factor + kRounder;
  __builtin_memcpy(bits, values, sizeof bits);
  for (uint32_t i = 0; i < kQuantColumns; ++i) {
    const auto code = static_cast<int32_t>(bits[i] - 0x4b400000U);  // the bits of kRounder
    codes[i] = static_cast<int8_t>(code);
    minus -= code;
  }
}

/// Rounds a row, which is number `t` of the rows that are laid out together. Of packed codes a byte has two columns, so
/// the even columns of a run come before its odd ones.
template <uint32_t kRows>
void quantise_row(const float* from, uint32_t in, bool is_packed, const QuantTarget<kRows>& to, uint32_t t) {
  for (uint32_t group = 0; group < runs_of(in) * kRunGroups; ++group) {
    const uint32_t column = group * kQuantColumns;
    const uint32_t count = column < in ? smaller(kQuantColumns, in - column) : 0;
    alignas(64) int8_t codes[kQuantColumns];
    const size_t scale = size_t{group} * kRows + t;
    quantise_group(from + (count != 0 ? column : 0), count, codes, to.scales[scale], to.minus[scale]);
    int8_t* const run = to.codes + size_t{group / kRunGroups} * QuantTarget<kRows>::kRunCodes;
    const uint32_t first = group % kRunGroups * kQuantColumns;
    const auto put = [&](const int8_t* four, uint32_t place) {  // of the run
      __builtin_memcpy(run + size_t{place} * kRows + size_t{4} * t, four, 4);
    };
    if (!is_packed) {
      for (uint32_t i = 0; i < kQuantColumns; i += 4)
        put(codes + i, first + i);
      continue;
    }
    alignas(64) int8_t apart[2][kQuantColumns / 2];
    for (uint32_t i = 0; i < kQuantColumns / 2; ++i) {
      apart[0][i] = codes[size_t{2} * i];
      apart[1][i] = codes[2 * i + 1];
    }
    for (uint32_t i = 0; i < kQuantColumns / 2; i += 4) {
      put(apart[0] + i, first / 2 + i);
      put(apart[1] + i, first / 2 + i + kRunColumns / 2);
    }
  }
}

template <class V>
void quantise_rows(const RoundingTask& task) {
  const uint32_t runs = runs_of(task.in);
  const uint32_t begin = task.groups.begin * kRoundedGroup;
  const uint32_t end = smaller(task.rows, task.groups.end * kRoundedGroup);
  for (uint32_t row = begin; row < end; ++row) {
    const float* const from = task.x + row * task.x_stride;
    if (task.rows <= kMostStreamed<V>) {
      quantise_row<1>(from, task.in, task.is_packed, {task.to + row * QuantRows<1>::bytes(task.in), runs}, 0);
    } else {
      std::byte* const to = task.to + row / kQuantRows * QuantRows<kQuantRows>::bytes(task.in);
      quantise_row<kQuantRows>(from, task.in, task.is_packed, {to, runs}, row % kQuantRows);
    }
  }
}
static_assert(kRoundedGroup % kQuantRows == 0);

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
