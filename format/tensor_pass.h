// Digests of tensors, taken in one pass over their bytes: for each tensor, its blocks of rows, and the whole file.
// Threads: an object belongs to one thread at a time.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "format/base/ids.h"
#include "format/digest.h"

namespace dspack::format {

struct TensorSums {
  Digest whole;
  std::vector<Digest> row_blocks{};  // the last one may be shorter
};

/// State of the digests of a tensor of which only the beginning has passed.
struct TensorSumsBegun {
  Sha256State whole;
  std::vector<Digest> row_blocks{};        // the complete ones
  std::optional<Sha256State> row_block{};  // the current block's, if the tensor has blocks
};

/// The digests of one tensor while its bytes pass.
class TensorHash {
 public:
  /// `block_bytes`: the size of the blocks with separate digests; 0: there are none.
  explicit TensorHash(uint64_t block_bytes = 0) : block_bytes_(block_bytes) {}

  /// `also`: hashes that take the same bytes, since hashing them together is cheapest. At most six.
  void take(std::span<const std::byte> bytes, std::span<Sha256* const> also = {});
  /// Call after the last byte.
  [[nodiscard]] TensorSums finish();

  /// For a later run, which resumes with the same block_bytes.
  [[nodiscard]] TensorSumsBegun state() const;
  void resume(const TensorSumsBegun& begun);

 private:
  void end_block();

  uint64_t block_bytes_;
  Sha256 whole_;
  Sha256 block_;
  uint64_t filled_ = 0;  // bytes of the current block
  std::vector<Digest> row_blocks_;
};

/// The digests of a file's tensors while the file's bytes pass in order.
class TensorPass {
 public:
  struct Tensor {
    ByteRange range;  // in the file
    uint64_t block_bytes = 0;
  };
  enum class Whole { digested, left_out };

  /// `tensors`: ascending, not overlapping. `begin`: the offset of the first byte that passes. `whole`: whether to
  /// digest all bytes as well, including those between the tensors.
  TensorPass(std::vector<Tensor> tensors, uint64_t begin, Whole whole);

  void take(std::span<const std::byte> bytes);

  struct Sums {
    Digest whole{};
    std::vector<TensorSums> tensors;  // those that have passed to their end
  };
  /// Call after the last byte.
  [[nodiscard]] Sums finish();

 private:
  void finish_ended();

  std::vector<Tensor> tensors_;
  uint64_t at_;
  std::optional<Sha256> whole_;
  TensorHash tensor_;
  Sums sums_;
};

}  // namespace dspack::format
