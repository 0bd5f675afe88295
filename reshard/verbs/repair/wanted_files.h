// The weight files of a packed repository as they must be: laid out as its manifest says, or, where it is unfinished,
// as its journal does. What is there can be compared with it, and made again from it.
// Threads: plain values and pure functions. Lifetime: refers to the catalogue; keep both together. Errors: none.
#pragma once

#include <optional>
#include <vector>

#include "reshard/plan/plan.h"
#include "reshard/run/journal.h"

namespace dspack::reshard {

struct WantedFile {
  PlannedFile planned;                                 // its tensors are those of the catalogue
  std::vector<std::optional<format::Digest>> tensors;  // nullopt: nothing is known of it yet
  std::optional<format::Digest> sha256{};              // of the raw bytes; nullopt: the file is not sealed yet
  bool is_compressed = false;                          // under its final name
  std::optional<format::CompressedForm> zstd{};        // how, where that is known
};

struct WantedFiles {
  const format::Checkpoint& catalogue;  // of what the files hold
  format::Path out;
  std::optional<int> zstd_level;
  std::vector<WantedFile> files;

  [[nodiscard]] format::Path part_path(uint32_t file) const;   // while it does not have all its bytes
  [[nodiscard]] format::Path final_path(uint32_t file) const;  // as it is stored
  [[nodiscard]] const format::TensorEntry& tensor(uint32_t file, uint32_t slot) const {
    return catalogue.tensors()[files[file].planned.tensors[slot]];
  }
  [[nodiscard]] ByteRange range(uint32_t file, uint32_t slot) const {
    const uint64_t begin = files[file].planned.offsets[slot];
    return {begin, begin + tensor(file, slot).range.size()};
  }
};

/// Of a complete repository; `packed` has its manifest.
[[nodiscard]] WantedFiles wanted_by_manifest(const format::Checkpoint& packed, const format::Path& out,
                                             std::optional<int> zstd_level);

/// Of an unfinished one: the tensors that are recorded as whole, in files that are sealed and in those that are not.
[[nodiscard]] WantedFiles wanted_by_journal(const Plan& plan, const JournalState& done, const format::Path& out);

}  // namespace dspack::reshard
