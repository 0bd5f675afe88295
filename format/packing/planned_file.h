// The files that a grouping makes of a checkpoint, laid out to the byte: the pure part of repacking and of the cache.
// Threads: thread-safe (pure functions). Lifetime: refers to the catalogue by index; keep both together. Errors: none.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/packing/grouping.h"

namespace dspack::format {

/// One file of weights, before it is written.
struct PlannedFile {
  std::string path;
  std::string part;                // as in PackedFile
  std::optional<LayerId> layer;    // common to all its tensors
  std::vector<ExpertKey> experts;  // the experts that it holds, ascending
  std::vector<uint32_t> tensors;   // catalogue indices, in the order of the file
  std::vector<uint64_t> offsets;   // absolute, for each tensor
  uint64_t data_start = 0;
  uint64_t size_bytes = 0;
};

/// For plan_files: the position of each tensor in the order in which a source is read, given its extent there (equal
/// extents: as listed). Shards are read from the last to the first, each front to back: in a file with tensors of two
/// neighbouring shards, the end of the one, which is read last, is then placed after the beginning of the next, so that
/// neighbouring shards can be read at the same time and files still get their bytes in order.
[[nodiscard]] std::vector<uint32_t> reading_order(const std::vector<Extent>& origins);

/// All files of a grouping, sorted by path; every tensor of the catalogue except aliases is in exactly one of them.
/// `order`: distinct numbers, one per tensor of the catalogue; in a file they ascend as far as alignment allows. Empty:
/// the order of use, which is that of arrange_tensors.
[[nodiscard]] std::vector<PlannedFile> plan_files(const Grouping& grouping, const Checkpoint& source,
                                                  std::span<const uint32_t> order);

/// The header of a planned file.
[[nodiscard]] std::string planned_header(const PlannedFile& file, const Checkpoint& source);

/// Rows per digest block of a tensor that is read by rows at run time (the token embedding); 0: no blocks.
[[nodiscard]] uint64_t rows_per_block(const TensorEntry& tensor);
/// Bytes of such a block; 0: no blocks.
[[nodiscard]] uint64_t row_block_bytes(const TensorEntry& tensor);

}  // namespace dspack::format
