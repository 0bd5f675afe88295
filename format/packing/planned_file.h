// The files that a grouping makes of a checkpoint, laid out to the byte: the pure part of repacking, and of whatever
// else keeps tensors in such files.
// Threads: thread-safe (pure functions). Lifetime: refers to the catalogue by index; keep both together. Errors: none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/packing/placement.h"

namespace dspack::format {

/// One file of weights, as it is to be.
struct PlannedFile {
  std::string path;
  std::string part;                // as in PackedFile
  std::optional<LayerId> layer;    // of all its tensors
  std::vector<ExpertKey> experts;  // that it holds, ascending
  std::vector<uint32_t> tensors;   // catalogue indices, in the order of the file
  std::vector<uint64_t> offsets;   // absolute, of each tensor
  uint64_t data_start = 0;
  uint64_t size_bytes = 0;
};

/// All files of a grouping, by path; every tensor of the catalogue is in exactly one of them.
[[nodiscard]] std::vector<PlannedFile> plan_files(const Grouping& grouping, const Checkpoint& source);

/// The header of a planned file.
[[nodiscard]] std::string planned_header(const PlannedFile& file, const Checkpoint& source);

/// Rows of one digest block of a tensor that is read by rows at run time (the token embedding); 0: no blocks.
[[nodiscard]] uint64_t rows_per_block(const TensorEntry& tensor);

}  // namespace dspack::format
