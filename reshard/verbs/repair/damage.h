// The weight files of a packed repository as they must be, and what of them is not so. They are laid out as its
// manifest says, or, where it is unfinished, as its journal does.
// Threads: plain values; find_damage is one call, `jobs` files at a time. Lifetime: refers to the catalogue; keep both
// together. Memory: about 1 MiB a job. Errors: what keeps from judging at all; what cannot be read of a file is damage.
#pragma once

#include <optional>
#include <vector>

#include "format/progress.h"
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

/// How what there is of a file can be read.
enum class Remains {
  none,
  raw_final,   // under its final name, as its raw bytes
  compressed,  // under its final name
  partial,     // raw, where files lie until they have all their bytes
};

struct FileDamage {
  uint32_t file = 0;
  Remains remains = Remains::none;
  std::vector<uint32_t> slots{};  // ascending; tensors that must be fetched: the others are as they must be
};

/// How files are judged.
enum class Scrutiny {
  bytes,    // every byte is read
  outside,  // presence and size alone; what fails is read
};

[[nodiscard]] Result<std::vector<FileDamage>> find_damage(const WantedFiles& wanted, Scrutiny scrutiny, unsigned jobs,
                                                          format::FileSystem& files, format::Progress& progress,
                                                          const std::stop_token& stop);

/// What there is of a file, by its raw bytes.
[[nodiscard]] Result<std::unique_ptr<format::ByteSource>> open_remains(const WantedFiles& wanted, uint32_t file,
                                                                       Remains remains, format::FileSystem& files);

}  // namespace dspack::reshard
