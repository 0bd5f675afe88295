// The bytes of one tensor on their way through a conversion, a piece at a time.
// Threads: a converter belongs to one thread at a time. Memory: up to one block of rows, 128 x columns values.
// Errors: corrupt (too few bytes), unsupported (values that have no such form, named by the caller's place).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "format/source/repository.h"
#include "kernels/convert.h"
#include "reshard/transform/transform.h"

namespace dspack::reshard {

class Converter {
 public:
  virtual ~Converter() = default;
  /// The next bytes of the source's tensor; what can be told of the result is passed on.
  [[nodiscard]] virtual Result<void> take(std::span<const std::byte> bytes, const format::ByteSink& sink) = 0;
  /// After the last byte.
  [[nodiscard]] virtual Result<void> finish(const format::ByteSink& sink) = 0;
  /// What rounding has cost so far; nullopt: this conversion loses nothing by its nature.
  [[nodiscard]] virtual std::optional<kernels::Loss> loss() const { return std::nullopt; }
};

/// `scales`: the bytes of the tensor that the conversion needs whole; empty if it needs none. Precondition: a
/// conversion other than `none`, with shapes as rules.h makes them.
[[nodiscard]] std::unique_ptr<Converter> make_converter(Conversion conversion, const format::TensorEntry& source,
                                                        std::vector<std::byte> scales);

}  // namespace dspack::reshard
