// Integer weights as products in precision int8 take them: codes, and the scales and zero points of their blocks. For
// the instruction set files only (see table.inl.h).
#pragma once

#include "kernels/cpu/int8_x.inl.h"
#include "kernels/cpu/scales.inl.h"

// NOLINTBEGIN(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces): one copy per file is the purpose
namespace dspack::kernels {
namespace {

/// Codes of one type: eight bits, or four, whose even columns are the low halves of bytes.
template <class V, class L>
struct IntegerCodes {
  static_assert(L::kBits == 4 || L::kBits == 8);
  using Bytes = typename V::Bytes;
  using Sums = typename V::Sums;
  static constexpr bool kIsPacked = L::kBits == 4;
  static constexpr bool kHasZeros = facts_of(L::kCoding).has_zeros;
  static constexpr int32_t kZero = kIsPacked ? 8 : V::kByteZero;  // zero point of codes that have none of their own
  static constexpr uint32_t kRunBytes = kRunColumns * L::kBits / 8;
  static constexpr uint32_t kSquares = kRunBytes / 64;
  static constexpr uint32_t kWords = 8;  // a lane's words for the columns of a group

  /// A decoded run: the halves that meet those of x.
  struct Run {
    Bytes first;
    Bytes second;
    explicit Run(const std::byte* codes) {
      const Bytes stored = V::load_bytes(codes);
      first = kIsPacked ? V::low_nibbles(stored) : V::byte_codes(stored);
      second = kIsPacked ? V::high_nibbles(stored) : V::byte_codes(V::load_bytes(codes + kRunBytes / 2));
    }
    /// Its sums, in quarter g those of group g.
    [[nodiscard]] Sums dot(const int8_t* x) const {
      const Sums none = V::set_sums(0);
      const Bytes after = V::load_bytes(x + kRunColumns / 2);
      if constexpr (kIsPacked) return V::dot_nibbles(second, after, V::dot_nibbles(first, V::load_bytes(x), none));
      return V::pair_quarters(V::dot_bytes(first, V::load_bytes(x), none), V::dot_bytes(second, after, none));
    }
  };
  /// Where the four columns of x begin in a run that word `word` of group `group` is multiplied by.
  static constexpr uint32_t x_of_word(uint32_t group, uint32_t word) {
    if constexpr (kIsPacked) return word / 4 * (kRunColumns / 2) + 16 * group + 4 * (word % 4);
    return kQuantColumns * group + 4 * word;
  }
  /// Turns square `square` of a run, 64 bytes of 16 outputs, into the words of its groups.
  template <size_t kStride>
  static void lay_out(V (&rows)[kLanes], uint32_t square, Bytes (*groups)[kWords][kStride], uint32_t vector) {
    V::transpose(rows);
#pragma GCC unroll 16
    for (uint32_t word = 0; word < kLanes; ++word) {
      const auto codes = __builtin_bit_cast(Bytes, V::bits_of(rows[word]));
      if constexpr (kIsPacked) {
        groups[word / 4][word % 4][vector] = V::low_nibbles(codes);
        groups[word / 4][4 + word % 4][vector] = V::high_nibbles(codes);
      } else {
        groups[2 * square + word / kWords][word % kWords][vector] = V::byte_codes(codes);
      }
    }
  }
  static Sums dot(const Bytes& codes, const Bytes& x, const Sums& sums) {
    return kIsPacked ? V::dot_nibbles(codes, x, sums) : V::dot_bytes(codes, x, sums);
  }
};

/// The division of a row's groups into scale blocks: each whole groups, or the whole row.
struct ScaleBlocks {
  uint32_t groups = 0;  // groups of a block
  uint32_t count = 0;
  explicit ScaleBlocks(const MatrixView& matrix) : count(matrix.scale_stride) {
    const uint32_t all = runs_of(matrix.in) * kRunGroups;
    groups = count == 1 ? all : matrix.block_in / kQuantColumns;
  }
};

/// Scales and zero points, the latter as integers in the place of FP32, of `count` blocks of a row from `first` on.
template <class V, class Codes>
void decode_blocks(const MatrixView& matrix, uint32_t row, uint32_t first, uint32_t count,
                   float (&scales)[kScaleWindow], float (&zeros)[kScaleWindow]) {
  decode_scales<V>(matrix, row, first, count, 1.0F, scales);
  if constexpr (Codes::kHasZeros) {
    const std::byte* from = matrix.planes[kZeros] + scale_index(matrix, row, first);
    for (uint32_t i = 0; i < count; ++i)
      zeros[i] = __builtin_bit_cast(float, static_cast<int32_t>(from[i]));
  }
}

}  // namespace
}  // namespace dspack::kernels
// NOLINTEND(cert-dcl59-cpp, misc-definitions-in-headers, google-build-namespaces)
