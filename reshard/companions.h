// The files of a packed repository that hold no weights: the source's own, byte for byte, and those that we write
// (index, model card, kept headers).
// Threads: called from one thread; fetches run in parallel. Errors: as the source and the file system.
#pragma once

#include <string>
#include <vector>

#include "format/file_system.h"
#include "format/manifest.h"
#include "format/source/repository.h"
#include "reshard/packed_writer.h"
#include "reshard/plan.h"

namespace dspack::reshard {

/// A non-weight file of the source and where it goes.
struct Companion {
  std::string source_path;
  std::string path;  // in the packed repository: README.md becomes README.source.md
  uint64_t size_bytes = 0;
};

/// Finds the source's non-weight files: all of them where the source can be listed, else those of the usual names and
/// the Python modules that config.json's auto_map names.
[[nodiscard]] Result<std::vector<Companion>> find_companions(format::Repository& repository, unsigned jobs,
                                                             const std::stop_token& stop);

/// Copies one companion below `out`; complete or absent afterwards.
[[nodiscard]] Result<format::CompanionFile> copy_companion(const Companion& companion, format::Repository& repository,
                                                           const format::Path& out, format::FileSystem& files,
                                                           DurableFolders& folders, const std::stop_token& stop);

/// Writes text as a companion below `out`.
[[nodiscard]] Result<format::CompanionFile> write_companion(const std::string& path, std::string_view text,
                                                            const format::Path& out, format::FileSystem& files,
                                                            DurableFolders& folders);

/// The ordinary Hub index over the packed files, so that other loaders open the folder as it is.
[[nodiscard]] std::string packed_index(const Plan& plan, const format::Checkpoint& source);

/// Every source shard's original header, zstd-compressed JSON {"<shard>": "<header text>"}: with the packed bytes it is
/// enough to rebuild the shards.
[[nodiscard]] Result<std::string> kept_headers(const format::Checkpoint& source);

/// README.md of the packed repository.
[[nodiscard]] std::string model_card(const format::Manifest& manifest, const Recipe& recipe, bool has_source_card);

}  // namespace dspack::reshard
