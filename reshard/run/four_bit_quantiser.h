// Quantises matrices of routed experts to four-bit codes and their scales: two tensors from one search.
// Threads: single-thread. Memory: a block of rows, before and after, and the scales of an FP8 or FP4 matrix. Errors:
// unsupported (values that the form cannot hold).
#pragma once

#include "reshard/run/converter.h"

namespace dspack::reshard {

class FourBitQuantiser;

/// The converters for the parts of one matrix. They get the same bytes; the first to get a piece has it converted.
class FourBitParts {
 public:
  /// `source`: BF16, FP8 with one scale per block of 128 x 128, or FP4 with one scale per 32 columns of a row.
  FourBitParts(const format::TensorEntry& source, const std::vector<float>& scales)
      : source_(source), scales_(scales) {}

  /// Precondition: a conversion to codes or scales, of the same form in all calls.
  [[nodiscard]] std::unique_ptr<Converter> part(Conversion conversion);

 private:
  const format::TensorEntry& source_;
  const std::vector<float>& scales_;
  std::shared_ptr<FourBitQuantiser> quantiser_;
};

}  // namespace dspack::reshard
