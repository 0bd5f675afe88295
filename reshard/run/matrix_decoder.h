// Matrices of any stored form made into values: those that dsrun multiplies with, for it is the same code that finds,
// checks and makes their planes (format/weights).
// Threads: single-thread. Lifetime: borrows the catalogue. Memory: the matrix as it is stored and its planes
// (kMaxMatrixBytes), and a block of rows. Errors: invalid (codes or scales that mean nothing), unsupported (a value
// that is too large for BF16).
#pragma once

#include <map>

#include "format/weights/weight_format.h"
#include "reshard/run/converter.h"

namespace dspack::reshard {

/// Of a matrix whose codes come as bytes; `beside`: the whole bytes of each other tensor of its planes.
struct MatrixSource {
  const format::Checkpoint& catalogue;
  format::StoredMatrix matrix;
  std::map<const format::TensorEntry*, std::vector<std::byte>> beside;
};

/// Precondition: `conversion` decodes.
[[nodiscard]] std::unique_ptr<Converter> make_matrix_decoder(MatrixSource source, Conversion conversion);

}  // namespace dspack::reshard
