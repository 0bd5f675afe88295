// The bytes of one tensor on their way through a conversion, a piece at a time.
// Threads: a converter belongs to one thread at a time. Memory: a block of rows, 128 x columns values, before and
// after; and the scales of one tensor. Errors: unsupported (values that have no such form), corrupt (scales that were
// powers of two and are not). The caller names the tensor.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "format/source/repository.h"
#include "kernels/convert.h"
#include "reshard/plan/transform.h"

namespace dspack::reshard {

class Converter {
 public:
  virtual ~Converter() = default;
  /// The next bytes of the source's tensor; what can be told of the result is passed on.
  [[nodiscard]] virtual Result<void> take(std::span<const std::byte> bytes, const format::ByteSink& sink) = 0;
  /// After the last byte.
  [[nodiscard]] virtual Result<void> finish(const format::ByteSink& sink) = 0;
  /// What rounding has cost so far, finite; nullopt: this conversion loses nothing by its nature.
  [[nodiscard]] virtual std::optional<kernels::Loss> loss() const { return std::nullopt; }
};

/// The values of a scale tensor, F32 or E8M0, from its bytes.
[[nodiscard]] std::vector<float> scale_values(Dtype dtype, std::span<const std::byte> bytes);

/// For all that is made of one tensor, which gets the same bytes at the same time: what several of them need is
/// computed once. Of a conversion `none` the converter is null. `scales`: one value a block, row by row, if one of them
/// needs them. Precondition: shapes as transform.h makes them.
[[nodiscard]] std::vector<std::unique_ptr<Converter>> make_converters(std::span<const Conversion> conversions,
                                                                      const format::TensorEntry& source,
                                                                      const std::vector<float>& scales);

}  // namespace dspack::reshard
