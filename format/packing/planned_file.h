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

/// For plan_files: the place of each tensor in the order in which a source is read, given where it comes from (equal
/// extents: as they are listed). Shards come from the last to the first, each front to back: then the end of a shard,
/// which is the last of it to be read, comes behind the beginning of the next one in a file that has both, so that
/// neighbouring shards can be read at the same time and files still get their bytes in their order.
[[nodiscard]] std::vector<uint32_t> reading_order(const std::vector<Extent>& origins);

/// All files of a grouping, by path; every tensor of the catalogue is in exactly one of them. `order`: of each tensor
/// of the catalogue, different numbers; in a file they ascend as far as alignment allows. Empty: the order of use,
/// which is that of arrange_tensors.
[[nodiscard]] std::vector<PlannedFile> plan_files(const Grouping& grouping, const Checkpoint& source,
                                                  std::span<const uint32_t> order);

/// The header of a planned file.
[[nodiscard]] std::string planned_header(const PlannedFile& file, const Checkpoint& source);

/// Rows of one digest block of a tensor that is read by rows at run time (the token embedding); 0: no blocks.
[[nodiscard]] uint64_t rows_per_block(const TensorEntry& tensor);
/// The bytes of such a block; 0: no blocks.
[[nodiscard]] uint64_t row_block_bytes(const TensorEntry& tensor);

}  // namespace dspack::format
