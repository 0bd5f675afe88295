// The expected weight files of a packed repository, and how the existing ones differ. The expected layout comes from
// the manifest, or from the journal if the repository is unfinished.
// Threads: plain values; find_damage is one call, `jobs` files at a time. Lifetime: refers to the catalogue; keep both
// together. Memory: about 1 MiB per job. Errors: those that prevent any judgement; unreadable parts of a file are
// damage.
#pragma once

#include <optional>
#include <vector>

#include "format/progress.h"
#include "reshard/plan/plan.h"
#include "reshard/run/journal.h"

namespace dspack::reshard {

struct WantedFile {
  PlannedFile planned;                                 // its tensors are catalogue indices
  std::vector<std::optional<format::Digest>> tensors;  // expected digests; nullopt: not known yet
  std::optional<format::Digest> sha256{};              // digest of the raw bytes; nullopt: the file is not sealed yet
  bool is_compressed = false;                          // true: stored compressed under its final name
  std::optional<format::CompressedForm> zstd{};        // compressed form, if known
};

struct WantedFiles {
  const format::Checkpoint& catalogue;  // describes the tensors in the files
  format::Path out;
  std::optional<int> zstd_level;
  std::vector<WantedFile> files;

  [[nodiscard]] format::Path part_path(uint32_t file) const;   // until it has all its bytes
  [[nodiscard]] format::Path final_path(uint32_t file) const;  // as it is stored
  [[nodiscard]] const format::TensorEntry& tensor(uint32_t file, uint32_t slot) const {
    return catalogue.tensors()[files[file].planned.tensors[slot]];
  }
  [[nodiscard]] ByteRange range(uint32_t file, uint32_t slot) const {
    const uint64_t begin = files[file].planned.offsets[slot];
    return {begin, begin + tensor(file, slot).range.size()};
  }
};

/// The files of a complete repository; `packed` has its manifest.
[[nodiscard]] WantedFiles wanted_by_manifest(const format::Checkpoint& packed, const format::Path& out,
                                             std::optional<int> zstd_level);

/// The files of an unfinished repository: the tensors recorded as complete, in sealed and unsealed files.
[[nodiscard]] WantedFiles wanted_by_journal(const Plan& plan, const JournalState& done, const format::Path& out);

/// How the remains of a file can be read.
enum class Remains {
  none,
  raw_final,   // raw, under the final name
  compressed,  // under the final name
  partial,     // raw, at the path of incomplete files
};

struct FileDamage {
  uint32_t file = 0;
  Remains remains = Remains::none;
  std::vector<uint32_t> slots{};  // ascending; tensors that must be fetched: the others are intact
};

/// How thoroughly files are checked.
enum class Scrutiny {
  bytes,    // every byte is read
  outside,  // only presence and size; files that fail are read
};

[[nodiscard]] Result<std::vector<FileDamage>> find_damage(const WantedFiles& wanted, Scrutiny scrutiny, unsigned jobs,
                                                          format::FileSystem& files, format::Progress& progress,
                                                          const std::stop_token& stop);

/// The raw bytes of a file's remains; null if there are none.
[[nodiscard]] Result<std::unique_ptr<format::ByteSource>> open_remains(const WantedFiles& wanted, uint32_t file,
                                                                       Remains remains, format::FileSystem& files);

}  // namespace dspack::reshard
