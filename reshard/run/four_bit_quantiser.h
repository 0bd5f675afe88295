// Matrices of routed experts made into codes of four bits and their scales: two tensors from one search.
// Threads: single-thread. Memory: a block of rows, before and after, and the scales of an FP8 or FP4 matrix. Errors:
// unsupported (values that the form does not hold).
#pragma once

#include "reshard/run/converter.h"

namespace dspack::reshard {

class FourBitQuantiser;

/// Of one matrix. Its parts are converters that get the same bytes; the first of them that gets some has them
/// converted.
class FourBitParts {
 public:
  /// `source`: BF16; FP8 with these scales, one a block of 128 x 128; FP4 with one for 32 columns of a row.
  FourBitParts(const format::TensorEntry& source, const std::vector<float>& scales)
      : source_(source), scales_(scales) {}

  /// Precondition: codes or scales, of the same form in all calls.
  [[nodiscard]] std::unique_ptr<Converter> part(Conversion conversion);

 private:
  const format::TensorEntry& source_;
  const std::vector<float>& scales_;
  std::shared_ptr<FourBitQuantiser> quantiser_;
};

}  // namespace dspack::reshard
