// Decodes matrices of any stored form into the values that dsrun multiplies with: the same code finds, checks and makes
// their planes (format/weights).
// Threads: single-thread. Lifetime: borrows the catalogue. Memory: the matrix as stored and its planes
// (kMaxMatrixBytes), and a block of rows. Errors: invalid (meaningless codes or scales), unsupported (a value too large
// for BF16).
#pragma once

#include <map>

#include "format/weights/weight_format.h"
#include "reshard/run/converter.h"

namespace dspack::reshard {

/// A matrix whose codes are streamed; `beside`: the whole bytes of each other tensor of its planes.
struct MatrixSource {
  const format::Checkpoint& catalogue;
  format::StoredMatrix matrix;
  std::map<const format::TensorEntry*, std::vector<std::byte>> beside;
};

/// Precondition: decodes(conversion).
[[nodiscard]] std::unique_ptr<Converter> make_matrix_decoder(MatrixSource source, Conversion conversion);

}  // namespace dspack::reshard
