// The ways in which a checkpoint stores the matrix of a linear layer. A WeightFormat finds a matrix's tensors, checks
// them, and says what each becomes in memory; everything else goes by the result, a StoredMatrix, whose planes are
// those of its coding (kernels/weight.h).
// To add a format: write a file beside plain_format.cpp and list it in weight_format.cpp. If no kernel decodes its
// codes yet, kernels/weight.h says what to add.
// Threads: thread-safe (pure functions). Lifetime: what is found borrows the catalogue. Errors: not_found (no such
// tensor), invalid (shape or scale does not fit), unsupported (a stored type that no kernel multiplies); each names
// file and tensor.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/weights/linear.h"

namespace dspack::runtime {

/// One plane of a matrix: a tensor, and what it becomes in memory.
struct StoredPlane {
  const format::TensorEntry* tensor = nullptr;  // nullptr: the matrix has no such plane
  bool widen = false;                           // to FP32
  uint64_t bytes = 0;                           // in memory
  uint32_t alignment = 1;                       // of its first byte in memory

  /// Whether bytes as they are stored can be used where they lie, at `offset` of aligned memory.
  [[nodiscard]] bool is_usable_at(uint64_t offset) const;
  /// Makes the plane of all of its stored bytes. `plane` has `bytes` bytes; it may not overlap `stored`.
  void convert(std::span<const std::byte> stored, std::span<std::byte> plane) const;
};

/// A matrix in a checkpoint: found and checked, not yet read.
struct StoredMatrix {
  kernels::WeightForm form;
  std::array<StoredPlane, kernels::kPlanes> planes;
};

/// The matrix that is looked for: `name` ("....weight") [out, in].
struct MatrixRequest {
  std::string_view name;
  uint32_t out = 0;
  uint32_t in = 0;
  std::optional<BlockSize> block;  // as config.json says it
};

/// Codes that cannot be used without scales.
struct ScaledCodes {
  Dtype dtype = Dtype::f8_e4m3;
  std::string_view name;   // of the dtype, for error texts
  std::string_view scale;  // what follows the weight's name in that of its scales, where they are missing
};

struct WeightFormat {
  std::string_view description;  // for error texts
  std::span<const std::string_view>
      suffixes;  // tensors of one layer, by what follows its name: "weight", "weight_scale"
  /// Whether the checkpoint stores the matrix of this name in this format.
  bool (*stores)(const format::Checkpoint& checkpoint, std::string_view name);
  /// Precondition: `stores`.
  Result<StoredMatrix> (*find)(const format::Checkpoint& checkpoint, const MatrixRequest& request);
  std::optional<ScaledCodes> scaled;
};

/// Every format that can be multiplied.
[[nodiscard]] std::span<const WeightFormat> weight_formats();

/// F32, BF16 and F16: plain_format.cpp.
[[nodiscard]] WeightFormat plain_format();
/// FP8 E4M3 with scales for blocks, for rows, or for the whole: fp8_format.cpp.
[[nodiscard]] WeightFormat fp8_format();

/// I8 with a scale for each row: int8_format.cpp.
[[nodiscard]] WeightFormat int8_format();

/// Finds the matrix `name` [out, in] with its scales. How it is stored is seen from its tensors. `block` is what
/// config.json says; without it the block size follows from the shape of the scales.
[[nodiscard]] Result<StoredMatrix> find_matrix(const format::Checkpoint& checkpoint, std::string_view name,
                                               uint32_t out, uint32_t in, const std::optional<BlockSize>& block);

/// Refuses a tensor of codes whose scales are missing. Errors: not_found, with the remedy.
[[nodiscard]] Result<void> check_scales(const format::Checkpoint& checkpoint, const format::TensorEntry& tensor);

// What formats are made of.

/// The codes as a tensor of the matrix's own shape: what a format that stores one code an element begins with.
[[nodiscard]] Result<StoredMatrix> find_codes(const format::Checkpoint& checkpoint, const MatrixRequest& request);

/// The first of a weight's possible scales that the checkpoint has; nullptr: none.
[[nodiscard]] const format::TensorEntry* find_scale(const format::Checkpoint& checkpoint,
                                                    const format::TensorEntry& weight);

/// Adds the scales of blocks of `block_out` x `block_in`. Errors: unsupported (their type).
[[nodiscard]] Result<void> add_scales(const format::Checkpoint& checkpoint, const format::TensorEntry& scales,
                                      const BlockSize& block, StoredMatrix& matrix);

/// Scales that do not belong to a matrix of this form. Errors: invalid.
[[nodiscard]] Error misfit(const format::Checkpoint& checkpoint, const format::TensorEntry& scales,
                           const kernels::WeightForm& form, std::string_view reason);

/// "[3, 4]", for error texts.
[[nodiscard]] std::string shown_shape(const std::vector<uint64_t>& shape);

/// Exact FP32 values of stored elements: F32, BF16, F16 or F8_E8M0. `values` has as many elements as `stored` holds.
void widen_to_f32(Dtype dtype, std::span<const std::byte> stored, std::span<float> values);

}  // namespace dspack::runtime
