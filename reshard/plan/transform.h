// Transforms: how a recipe changes weights. The only list of them: a new format adds a row to the table, a rule and a
// converter. Rules decide names, dtypes and shapes; the arithmetic is in converter.h.
// Threads: plain values and pure functions. Errors: invalid (a recipe's text, a missing scale), unsupported (a tensor
// that a transform should change but cannot: a scale that does not fit, FP8 that is no matrix, sizes that no model
// has).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/weights/weight_format.h"
#include "reshard/plan/selection.h"

namespace dspack::reshard {

/// Rows and columns of a block that shares one scale. Source: DeepSeek-V3's README_WEIGHTS.md, "weight_block_size".
inline constexpr uint64_t kBlock = 128;
/// Limit on the memory for one tensor's conversion: for its scales, or for the rows that are converted together. Each
/// is a few MB for DeepSeek-V3's largest matrix; a header that needs more is not a model's.
inline constexpr uint64_t kMaxHeldBytes = 256ULL << 20;
/// The same limit if codes are not in the order of the values, so that the matrix is held whole, both as stored and as
/// multiplied.
inline constexpr uint64_t kMaxMatrixBytes = 1ULL << 30;

enum class TransformKind {
  fp8_to_bf16,        // FP8 weights with block scales -> BF16; consumes the scales
  fp8_to_f32,         // the same -> F32
  quantised_to_bf16,  // matrices of any form that dsrun reads -> BF16; consumes all tensors of the matrix
  quantised_to_f32,   // the same -> F32
  bf16_to_fp8,        // BF16 matrices -> FP8 E4M3 with one F32 scale per block of 128 x 128
  scales_to_e8m0,     // F32 block scales -> E8M0 if that is lossless
  weights_to_int4,    // matrices of attention, MLPs, experts and the head in BF16, FP8 or the FP4 that DeepSeek-V4's
                      // experts were trained in -> int4 in groups of 32, with compressed-tensors' names
  weights_to_int8,    // the same -> int8
  experts_to_int4,    // weights_to_int4 of routed experts
  experts_to_nvfp4,   // the same matrices -> E2M1 with E4M3 scales per group of 16, with compressed-tensors' names
};

/// A transform of a recipe. It applies to every tensor that it can change and that the selector fits.
struct Transform {
  TransformKind kind = TransformKind::fp8_to_bf16;
  Selector where{};
};

/// Parses {"kind":"fp8-to-bf16","role":"routed_expert"}: "kind" and optional keys of a selector; or a string, as below.
[[nodiscard]] Result<Transform> transform_of(const format::Json& value);
[[nodiscard]] format::Json transform_json(const Transform& transform);
/// Parses the command-line form: "fp8-to-bf16" or "fp8-to-bf16 role=routed_expert".
[[nodiscard]] Result<Transform> parse_transform(std::string_view text);
[[nodiscard]] std::string_view to_string(TransformKind kind);
/// Names with their meanings, separated by commas, for help texts.
[[nodiscard]] std::string transform_help();

/// How the bytes of a result tensor are computed from those of a source tensor, as they stream by.
enum class Conversion {
  none,             // the bytes are the same
  fp8_to_bf16,      // needs the scales
  fp8_to_f32,       // needs the scales
  decoded_to_bf16,  // needs all other tensors of the matrix
  decoded_to_f32,   // needs the same
  bf16_to_fp8,      // the codes
  bf16_scales,      // their scales, also made from the matrix
  f32_to_e8m0,
  int4_codes,    // two per byte; needs the scales of an FP8 or FP4 matrix
  int4_scales,   // BF16, one per group; needs the same
  int8_codes,    // needs the same
  int8_scales,   // BF16, one per group; needs the same
  packed_shape,  // shape of a matrix of integers, I64
  nvfp4_codes,   // two per byte; needs the scales of an FP8 or FP4 matrix
  nvfp4_scales,  // E4M3, one per group; needs the same
  nvfp4_global,  // divisor of the scales: one F32
};

/// A result tensor that differs from the source's.
struct Made {
  uint32_t of = 0;            // catalogue index of the source tensor that it is made from
  format::TensorEntry entry;  // its range is {0, bytes}
  Conversion conversion = Conversion::none;
  std::vector<uint32_t> needs{};  // catalogue indices of the source tensors that the conversion needs whole
};

/// How a transform changes a weight and the tensors that belong to it.
struct Change {
  std::vector<uint32_t> replaced;  // catalogue indices; not in the result
  std::vector<Made> made;          // in the result instead
};

/// Facts about the source that rules use in addition to names, dtypes and shapes.
struct KnownOfSource {
  /// Whether all values of an F32 scale tensor (a catalogue index) are powers of two. Used only by scales_to_e8m0.
  std::function<bool(uint32_t)> exact_scales;
  /// The quantisation that config.json describes. Used by quantised_to_bf16 and quantised_to_f32.
  format::Quantization stored;
};

/// nullopt: the transform does not apply to the weight.
[[nodiscard]] Result<std::optional<Change>> apply(const Transform& transform, uint32_t weight,
                                                  const format::Checkpoint& source, const KnownOfSource& known);

/// The matrix, in any form that dsrun reads, whose codes are this tensor; nullopt: the tensor holds no codes of such a
/// form. Errors: those of finding the matrix.
[[nodiscard]] Result<std::optional<format::StoredMatrix>> coded_matrix(const format::TensorEntry& codes,
                                                                       const format::Checkpoint& source,
                                                                       const format::Quantization& stored);

/// Whether the transform uses the quantisation that config.json describes.
[[nodiscard]] bool decodes(TransformKind kind);
/// Whether the conversion decodes a matrix as a whole.
[[nodiscard]] bool decodes(Conversion conversion);

/// Whether a tensor belongs to the linear layers that DeepSeek-V3 stores as FP8: attention and all MLPs. Excludes the
/// embedding, output head, router, norms and the MTP module's own tensors.
[[nodiscard]] bool is_quantised_role(const format::TensorEntry& tensor);

/// The scale tensor of a matrix in the FP4 that DeepSeek-V4's experts were trained in: E2M1 codes in I8, two per byte,
/// with E8M0 scales. Recognised by dtypes alone. nullptr: stored in another form.
[[nodiscard]] const format::TensorEntry* trained_fp4_scales(const format::TensorEntry& weight,
                                                            const format::Checkpoint& source);
/// Columns of the matrix whose elements or codes a tensor holds: for I8, two per byte.
[[nodiscard]] uint64_t matrix_columns(const format::TensorEntry& weight);

/// The scale tensor of an FP8 matrix in blocks of 128 x 128, as a catalogue index: F32 or E8M0, one value per block.
[[nodiscard]] Result<uint32_t> block_scales(const format::TensorEntry& weight, const format::Checkpoint& source);

/// The F32 scale tensor of an FP8 matrix, which scales_to_e8m0 might change, as a catalogue index; nullopt: none.
[[nodiscard]] std::optional<uint32_t> narrowable_scales(const format::TensorEntry& weight,
                                                        const format::Checkpoint& source);

}  // namespace dspack::reshard
