// What of the wanted files is not as it must be.
// Threads: one call; `jobs` files at a time. Memory: about 1 MiB a job. Errors: what keeps from judging at all; what
// cannot be read of a file is damage.
#pragma once

#include <vector>

#include "format/progress.h"
#include "reshard/verbs/repair/wanted_files.h"

namespace dspack::reshard {

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
