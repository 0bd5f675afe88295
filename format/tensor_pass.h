// Digests of tensors, taken in one pass over their bytes: of each tensor, of its blocks of rows, of the whole file.
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

/// A tensor of which the beginning has passed.
struct TensorSumsBegun {
  Sha256State whole;
  std::vector<Digest> row_blocks{};        // those that are whole
  std::optional<Sha256State> row_block{};  // of the one under way, if the tensor has such
};

/// The digests of one tensor while its bytes pass.
class TensorHash {
 public:
  /// `block_bytes`: the size of the blocks that get digests of their own; 0: there are none.
  explicit TensorHash(uint64_t block_bytes = 0) : block_bytes_(block_bytes) {}

  /// `also` take the same bytes: digests of equal bytes are cheapest together. At most six.
  void take(std::span<const std::byte> bytes, std::span<Sha256* const> also = {});
  /// After the last byte.
  [[nodiscard]] TensorSums finish();

  /// For a later run, which goes on with the same block_bytes.
  [[nodiscard]] TensorSumsBegun state() const;
  void resume(const TensorSumsBegun& begun);

 private:
  void end_block();

  uint64_t block_bytes_;
  Sha256 whole_;
  Sha256 block_;
  uint64_t filled_ = 0;  // bytes of the block under way
  std::vector<Digest> row_blocks_;
};

/// The digests of tensors that lie in a file, while its bytes pass in order.
class TensorPass {
 public:
  struct Tensor {
    ByteRange range;  // in the file
    uint64_t block_bytes = 0;
  };
  enum class Whole { digested, left_out };

  /// `tensors`: ascending and apart. `begin`: the offset of the first byte that passes. With `whole` all bytes get a
  /// digest together, those between the tensors included.
  TensorPass(std::vector<Tensor> tensors, uint64_t begin, Whole whole);

  void take(std::span<const std::byte> bytes);

  struct Sums {
    Digest whole{};
    std::vector<TensorSums> tensors;  // of those that were passed to their end
  };
  /// After the last byte.
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
