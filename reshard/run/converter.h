// Converts the bytes of one tensor as they stream by, a piece at a time.
// Threads: a converter belongs to one thread at a time. Memory: a block of rows, 128 x columns values, before and after
// conversion; and the scales of one tensor. Errors: unsupported (values that the form cannot hold), corrupt (scales
// that are no longer powers of two), invalid (meaningless codes or scales). The caller names the tensor.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "format/source/repository.h"
#include "format/weights/weight_format.h"
#include "kernels/convert.h"
#include "reshard/plan/transform.h"

namespace dspack::reshard {

class Converter {
 public:
  virtual ~Converter() = default;
  /// Takes the next bytes of the source tensor; passes result bytes to `sink` as soon as they are known.
  [[nodiscard]] virtual Result<void> take(std::span<const std::byte> bytes, const format::ByteSink& sink) = 0;
  /// Call after the last byte.
  [[nodiscard]] virtual Result<void> finish(const format::ByteSink& sink) = 0;
  /// Rounding loss so far, finite; nullopt: the conversion is lossless, or another converter reports its loss.
  [[nodiscard]] virtual std::optional<kernels::Loss> loss() const { return std::nullopt; }
};

/// The values of a scale tensor, F32 or E8M0, from its bytes.
[[nodiscard]] std::vector<float> scale_values(Dtype dtype, std::span<const std::byte> bytes);

/// Converters for all tensors made from one source tensor. They must be given the same bytes in step, since shared work
/// is done once. Null for the conversion `none`. `scales`: one value per block, row by row, if a conversion needs them.
/// Precondition: shapes as transform.h makes them.
[[nodiscard]] std::vector<std::unique_ptr<Converter>> make_converters(std::span<const Conversion> conversions,
                                                                      const format::TensorEntry& source,
                                                                      const std::vector<float>& scales);

/// A matrix whose codes are streamed; `beside`: the whole bytes of each other tensor of its planes.
struct MatrixSource {
  const format::Checkpoint& catalogue;
  format::StoredMatrix matrix;
  std::map<const format::TensorEntry*, std::vector<std::byte>> beside;
};

/// Decodes matrices of any stored form into the values that dsrun multiplies with: the same code finds, checks and
/// makes their planes (format/weights). Borrows the catalogue. Memory: the matrix as stored and its planes
/// (kMaxMatrixBytes), and a block of rows. Precondition: decodes(conversion).
[[nodiscard]] std::unique_ptr<Converter> make_matrix_decoder(MatrixSource source, Conversion conversion);

}  // namespace dspack::reshard
