// Transforms: what a recipe changes about weights. The one place that knows which there are; a new format is a line of
// its table, a rule and a converter. Rules decide names, dtypes and shapes; the arithmetic is in converter.h.
// Threads: plain values and pure functions. Errors: invalid (a recipe's text, a scale that is missing), unsupported (a
// tensor that a transform should change and cannot: a scale that does not fit, FP8 that is no matrix, sizes that no
// model has).
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
/// The most that a conversion may hold of one tensor: its scales, or the rows that are converted together. Both are a
/// few MB of the largest matrix of DeepSeek-V3; a header that asks for more is not one of a model's.
inline constexpr uint64_t kMaxHeldBytes = 256ULL << 20;
/// The same where codes are not in the order of the values, and so the matrix is held whole: as it is stored and as it
/// is multiplied.
inline constexpr uint64_t kMaxMatrixBytes = 1ULL << 30;

enum class TransformKind {
  fp8_to_bf16,        // FP8 weights with block scales -> BF16, the scales are used up
  fp8_to_f32,         // the same -> F32
  quantised_to_bf16,  // matrices of any form that dsrun reads -> BF16; what belongs to their codes is used up
  quantised_to_f32,   // the same -> F32
  bf16_to_fp8,        // BF16 matrices -> FP8 E4M3 with one F32 scale a block of 128 x 128
  scales_to_e8m0,     // F32 block scales -> E8M0 where that loses nothing
  experts_to_int4,    // BF16 and FP8 matrices of routed experts, and the FP4 that DeepSeek-V4's were trained in ->
                      // int4 in groups of 32, compressed-tensors' names
  experts_to_nvfp4,   // the same -> E2M1 with E4M3 scales for groups of 16, likewise
};

/// A transform of a recipe, and the tensors that it is for: all that it fits, unless the selector says otherwise.
struct Transform {
  TransformKind kind = TransformKind::fp8_to_bf16;
  Selector where{};
};

/// {"kind":"fp8-to-bf16","role":"routed_expert"}: "kind" and perhaps keys of a selector.
[[nodiscard]] Result<Transform> transform_of(const format::Json& value);
[[nodiscard]] format::Json transform_json(const Transform& transform);
/// As a command line has it: "fp8-to-bf16" or "fp8-to-bf16 role=routed_expert".
[[nodiscard]] Result<Transform> parse_transform(std::string_view text);
[[nodiscard]] std::string_view to_string(TransformKind kind);
/// Names and meanings, one line each, for help texts.
[[nodiscard]] std::string transform_help();

/// How the bytes of one tensor of the result are made of those of one tensor of the source, as they stream by.
enum class Conversion {
  none,             // they are the same
  fp8_to_bf16,      // needs the scales
  fp8_to_f32,       // needs the scales
  decoded_to_bf16,  // needs all that belongs to the codes
  decoded_to_f32,   // likewise
  bf16_to_fp8,      // the matrix
  bf16_scales,      // the scales that go with it, made of the matrix too
  f32_to_e8m0,
  int4_codes,    // two a byte; needs the scales of an FP8 or FP4 matrix
  int4_scales,   // BF16, one a group; likewise
  int4_shape,    // of the matrix, I64
  nvfp4_codes,   // two a byte; needs the scales of an FP8 or FP4 matrix
  nvfp4_scales,  // E4M3, one a group; likewise
  nvfp4_global,  // by which they are divided: one F32
};

/// A tensor of the result that is not the source's as it was.
struct Made {
  uint32_t of = 0;            // catalogue index of the source's tensor that it is made of
  format::TensorEntry entry;  // its range is {0, bytes}
  Conversion conversion = Conversion::none;
  std::vector<uint32_t> needs{};  // catalogue indices of the source's tensors that the conversion needs whole
};

/// What a transform makes of a weight and of what belongs to it.
struct Change {
  std::vector<uint32_t> replaced;  // catalogue indices: these are not in the result
  std::vector<Made> made;          // these are instead
};

/// What rules ask beside names, types and shapes.
struct KnownOfSource {
  /// Of an F32 scale tensor: whether all its values are powers of two. Asked by scales_to_e8m0 alone.
  std::function<bool(uint32_t)> exact_scales;
  /// What config.json says of codes. Asked by quantised_to_bf16 and quantised_to_f32.
  format::Quantization stored;
};

/// nullopt: the transform does not concern the weight.
[[nodiscard]] Result<std::optional<Change>> apply(const Transform& transform, uint32_t weight,
                                                  const format::Checkpoint& source, const KnownOfSource& known);

/// The matrix of any form whose codes are this tensor, as dsrun reads it; nullopt: the tensor is none of a form's
/// codes. Errors: those of finding it.
[[nodiscard]] Result<std::optional<format::StoredMatrix>> coded_matrix(const format::TensorEntry& codes,
                                                                       const format::Checkpoint& source,
                                                                       const format::Quantization& stored);

/// Whether it asks what config.json says of codes.
[[nodiscard]] bool decodes(TransformKind kind);
/// Whether a matrix is decoded whole.
[[nodiscard]] bool decodes(Conversion conversion);

/// Whether a tensor is of the linear layers that DeepSeek-V3 stores as FP8: those of attention and of all MLPs.
/// Embedding, output head, router, norms and what the MTP module has of its own are not.
[[nodiscard]] bool is_quantised_role(const format::TensorEntry& tensor);

/// The scale tensor of a matrix in the FP4 that DeepSeek-V4's experts were trained in: E2M1 codes in I8, two a byte,
/// with E8M0 scales. Types alone tell it. nullptr: it is stored otherwise.
[[nodiscard]] const format::TensorEntry* trained_fp4_scales(const format::TensorEntry& weight,
                                                            const format::Checkpoint& source);
/// Columns of the matrix whose elements or codes a tensor of such a shape holds: of I8 twice as many as bytes.
[[nodiscard]] uint64_t matrix_columns(const format::TensorEntry& weight);

/// The scale tensor of an FP8 matrix in blocks of 128 x 128, as a catalogue index: F32 or E8M0, one value a block.
[[nodiscard]] Result<uint32_t> block_scales(const format::TensorEntry& weight, const format::Checkpoint& source);

/// The scale tensor that scales_to_e8m0 might change for a weight, as a catalogue index: of an FP8 matrix, F32.
[[nodiscard]] std::optional<uint32_t> narrowable_scales(const format::TensorEntry& weight,
                                                        const format::Checkpoint& source);

}  // namespace dspack::reshard
