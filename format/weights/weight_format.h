// The ways in which a checkpoint stores the matrix of a linear layer. A WeightFormat finds a matrix's tensors, checks
// them, and determines what each becomes in memory; all other code uses the result, a StoredMatrix, whose planes are
// those of its coding (kernels/weight.h). To add a format: write a file beside plain_format.cpp and list it in
// weight_format.cpp. If no kernel decodes its codes yet, kernels/weight.h says what to add.
// Threads: thread-safe (pure functions). Lifetime: results borrow the catalogue. Errors: not_found (no such tensor),
// invalid (shape or scale does not fit), unsupported (a stored type that no kernel multiplies); each names file and
// tensor.
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "format/weights/find_tensor.h"
#include "format/weights/quantization_config.h"
#include "format/weights/weight_form.h"

namespace dspack::format {

/// The bytes of a plane's tensors, in the order of StoredPlane::tensors.
using StoredBytes = std::span<const std::span<const std::byte>>;

/// One plane of a matrix: its tensors, and what they become in memory.
struct StoredPlane {
  /// The first holds the elements; the others are needed to make or to check the plane. Empty: there is no such plane.
  std::vector<const TensorEntry*> tensors;
  uint64_t bytes = 0;      // in memory
  uint32_t alignment = 1;  // alignment of the first byte in memory
  WeightForm form;
  /// Makes the plane; nullptr: it is used as stored. Errors: invalid, without the tensor's name.
  Result<void> (*make)(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) = nullptr;
  /// Checks the stored bytes before they are used; nullptr: every value is valid. Errors: as `make`.
  Result<void> (*check)(const StoredPlane& plane, StoredBytes stored) = nullptr;

  [[nodiscard]] bool empty() const { return tensors.empty(); }
  [[nodiscard]] const TensorEntry& elements() const { return *tensors.front(); }
  /// Whether its bytes can be read piece by piece to where they are used.
  [[nodiscard]] bool is_as_stored() const { return make == nullptr && check == nullptr; }
  /// Checks the stored bytes and makes the plane from all of them. `to` has `bytes` bytes; it is the stored elements
  /// themselves or does not overlap them. Errors: invalid, with file and tensor.
  [[nodiscard]] Result<void> finish(const Checkpoint& checkpoint, StoredBytes stored, std::span<std::byte> to) const;
};

/// A matrix in a checkpoint: found and checked, not yet read.
struct StoredMatrix {
  WeightForm form;
  std::array<StoredPlane, kPlanes> planes;
};

/// The requested matrix: `name` ("....weight") [out, in].
struct MatrixRequest {
  std::string_view name;
  uint32_t out = 0;
  uint32_t in = 0;
  Quantization stored;  // settings in config.json
};

/// Rows and columns of a matrix.
struct MatrixShape {
  uint32_t out = 0;
  uint32_t in = 0;
};

/// Codes that cannot be used without scales.
struct ScaledCodes {
  std::string_view ending;  // how the tensor's name ends
  Dtype dtype = Dtype::f8_e4m3;
  std::string_view name;   // name of the dtype, for error texts
  std::string_view scale;  // name of the scales after the module's, for the error if they are missing
};

struct WeightFormat {
  std::string_view description;                // for error texts
  std::span<const std::string_view> suffixes;  // names of a layer's tensors after its own: "weight", "weight_scale"
  std::string_view codes = "weight";           // the one among them that holds values or codes
  /// Whether the checkpoint stores the matrix of this name in this format.
  bool (*stores)(const Checkpoint& checkpoint, std::string_view name);
  /// Precondition: `stores`.
  Result<StoredMatrix> (*find)(const Checkpoint& checkpoint, const MatrixRequest& request);
  /// Codes whose scales Checkpoint::find_scale finds (kScaleRules, format/tensor_name.cpp); empty: `find` finds them.
  std::span<const ScaledCodes> scaled;
  /// The matrix's shape by its tensors' names, types and shapes, for callers without a model that defines it; `find`
  /// checks it. nullptr: values are stored, not codes. Precondition: `stores`. Errors: invalid, unsupported (only the
  /// bytes of tensors determine it).
  Result<MatrixShape> (*shape)(const Checkpoint& checkpoint, std::string_view name,
                               const Quantization& stored) = nullptr;
};

/// All formats that kernels can multiply.
[[nodiscard]] std::span<const WeightFormat> weight_formats();

/// The format in which the checkpoint stores the matrix of this name; nullptr: in none.
[[nodiscard]] const WeightFormat* storing_format(const Checkpoint& checkpoint, std::string_view name);

/// The name of the matrix ("....weight") whose values or codes a tensor of this name holds in some format; empty: none.
[[nodiscard]] std::string matrix_of_codes(std::string_view tensor);

/// F32, BF16 and F16: plain_format.cpp.
[[nodiscard]] WeightFormat plain_format();
/// FP8 E4M3 with scales per block, per row, or for the whole matrix: fp8_format.cpp.
[[nodiscard]] WeightFormat fp8_format();

/// I8 with a scale per row: int8_format.cpp.
[[nodiscard]] WeightFormat int8_format();
/// Integers of four or eight bits in 32-bit words, with scales per group of columns: packed_format.cpp.
[[nodiscard]] WeightFormat packed_format();
/// AutoAWQ's transposed integers of four bits: gptq_format.cpp.
[[nodiscard]] WeightFormat awq_format();
/// GPTQ's transposed integers of four or eight bits: gptq_format.cpp.
[[nodiscard]] WeightFormat gptq_format();
/// E2M1 with scales per 16 (NVFP4) or 32 (MXFP4) columns: fp4_format.cpp.
[[nodiscard]] WeightFormat fp4_format();

/// bitsandbytes' codes of four bits, and its int8, which become FP32 when they are read: bitsandbytes_format.cpp.
[[nodiscard]] WeightFormat bitsandbytes_four_bit_format();
[[nodiscard]] WeightFormat bitsandbytes_int8_format();

/// Finds the matrix `name` [out, in] with its scales. Its tensors determine how it is stored. `stored`: the settings in
/// config.json; without them the block size follows from the shape of the scales.
[[nodiscard]] Result<StoredMatrix> find_matrix(const Checkpoint& checkpoint, std::string_view name, uint32_t out,
                                               uint32_t in, const Quantization& stored);

/// Refuses a tensor of codes whose scales are missing. Errors: not_found, with the remedy.
[[nodiscard]] Result<void> check_scales(const Checkpoint& checkpoint, const TensorEntry& tensor);

// Building blocks of formats.

/// The codes as a tensor of the matrix's own shape: the first step of a format that stores one code per element.
[[nodiscard]] Result<StoredMatrix> find_codes(const Checkpoint& checkpoint, const MatrixRequest& request);

/// The shape of a matrix whose codes are a tensor [out, in / per_element], or [in / per_element, out] if `is_turned`.
/// Errors: invalid (no matrix, sizes that no model has).
[[nodiscard]] Result<MatrixShape> shape_of_codes(const Checkpoint& checkpoint, const TensorEntry& codes,
                                                 uint64_t per_element, bool is_turned = false);

/// The name up to its last component: "a.b." of "a.b.weight".
[[nodiscard]] std::string module_of(std::string_view name);

/// A plane made of this tensor, of the size that the form requires.
[[nodiscard]] StoredPlane plane_of(const TensorEntry& tensor, const WeightForm& form, size_t plane);

/// A plane of FP32 values, from a tensor of F32, BF16, F16 or F8_E8M0.
[[nodiscard]] StoredPlane widened_plane(const TensorEntry& tensor, uint64_t values);

/// The number of columns that share one of `count` scales of a row: from config.json, else `usual`, else the only power
/// of two that fits. Errors: invalid (it does not give `count` scales), unsupported (a group that no kernel knows).
[[nodiscard]] Result<uint32_t> group_of(const Checkpoint& checkpoint, const TensorEntry& scales, uint64_t count,
                                        const Quantization& stored, const WeightForm& form,
                                        std::optional<uint32_t> usual = std::nullopt);

/// The plane, with a check that each of its scales is finite.
[[nodiscard]] StoredPlane finite_values(StoredPlane plane);

/// Adds scales per group of columns of each row, or per row, that stay as stored, each a finite number. `usual`: the
/// columns of a group, if known; else they follow from the scales' shape [out, groups]. U8 counts as E8M0: a format
/// whose U8 means something else checks the type first. Errors: invalid (a shape that
/// does not fit, or contradicts config.json), unsupported (a type or a group that no kernel knows).
[[nodiscard]] Result<void> add_group_scales(const Checkpoint& checkpoint, const TensorEntry& scales,
                                            const Quantization& stored, std::optional<uint32_t> usual,
                                            StoredMatrix& matrix);

/// Adds the scales of blocks of `block.out` x `block.in`. Errors: unsupported (their type).
[[nodiscard]] Result<void> add_scales(const Checkpoint& checkpoint, const TensorEntry& scales, const BlockSize& block,
                                      StoredMatrix& matrix);

/// The error for scales that do not fit a matrix of this form: invalid.
[[nodiscard]] Error misfit(const Checkpoint& checkpoint, const TensorEntry& scales, const WeightForm& form,
                           std::string_view reason);

/// Writes element `index` of the differences of eight-bit codes and zero points, which are signed, as BF16.
inline void store_difference(std::span<std::byte> to, uint64_t index, int32_t value) {
  // Its magnitude is at most 255, so the low half of its FP32 is zero.
  const auto high = static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
  std::memcpy(to.data() + index * sizeof high, &high, sizeof high);
}

/// Exact FP32 values of stored elements: F32, BF16, F16 or F8_E8M0. `values` has as many elements as `stored` holds.
void widen_to_f32(Dtype dtype, std::span<const std::byte> stored, std::span<float> values);

}  // namespace dspack::format
