// The files of a packed repository that hold no weights: the source's own, byte for byte, and those that dspack writes
// (index, model card, kept headers).
// Threads: called from one thread; fetches run in parallel. Errors: as the source and the file system.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/file_system.h"
#include "format/json.h"
#include "format/manifest.h"
#include "format/source/repository.h"
#include "reshard/plan/plan.h"
#include "reshard/run/declarations.h"
#include "reshard/run/packed_writer.h"

namespace dspack::reshard {

/// A non-weight file of the source and its place in the packed repository.
struct Companion {
  std::string source_path;
  std::string path;  // in the packed repository: README.md becomes README.source.md
  uint64_t size_bytes = 0;
  std::vector<Declared> declared = {};  // digests that its bytes must have
};

/// The name in the source of a packed companion; nullopt: dspack wrote it (index, card, kept headers).
[[nodiscard]] std::optional<std::string> source_name(const std::string& packed_path);

/// Whether the recipe has changed config.json of a packed repository; the source's own is then beside it.
[[nodiscard]] bool has_changed_config(const format::Manifest& manifest);
/// source_name for a repository with a possibly changed config.json: then dspack wrote it, and kSourceConfig is the
/// source's.
[[nodiscard]] std::optional<std::string> source_name(const std::string& packed_path, const format::Manifest& manifest);

inline constexpr char kConfigPath[] = "config.json";
/// Where the source's config.json is kept if a recipe has changed the model that it describes.
inline constexpr char kSourceConfig[] = "config.source.json";
/// NVIDIA's description of the quantisation, which loaders use if config.json has none.
inline constexpr char kQuantConfigPath[] = "hf_quant_config.json";

/// A file of the source that does not describe the result, and the name under which it is kept.
struct SetAside {
  std::string_view source;
  std::string_view packed;
};
inline constexpr SetAside kSetAside[] = {{kConfigPath, kSourceConfig},
                                         {kQuantConfigPath, "hf_quant_config.source.json"}};

/// Finds the source's non-weight files by listing the place. If it cannot be listed, tries the usual names and the
/// Python modules that config.json names.
[[nodiscard]] Result<std::vector<Companion>> find_companions(format::Repository& repository, unsigned jobs,
                                                             const std::stop_token& stop);

/// Copies one companion below `out`. Afterwards it is complete or absent; absent (corrupt) if its digest is known and
/// differs.
[[nodiscard]] Result<format::CompanionFile> copy_companion(const Companion& companion, format::Repository& repository,
                                                           const format::Path& out, format::FileSystem& files,
                                                           DurableFolders& folders, const std::stop_token& stop);

/// Copies one companion to `into`; durable except for its name. corrupt, if its digest is known and differs: the file
/// then stays at `into`.
[[nodiscard]] Result<format::CompanionFile> fetch_companion(const Companion& companion, format::Repository& repository,
                                                            const format::Path& into, format::FileSystem& files,
                                                            DurableFolders& folders, const std::stop_token& stop);

/// Writes text as a companion below `out`.
[[nodiscard]] Result<format::CompanionFile> write_companion(const std::string& path, std::string_view text,
                                                            const format::Path& out, format::FileSystem& files,
                                                            DurableFolders& folders);

/// The ordinary Hub index of the packed files, so that other loaders can open the folder as it is. If they cannot read
/// the files (unreadable_reason), write none: they would treat tensors that they do not find as absent, and some would
/// continue without them.
[[nodiscard]] std::string packed_index(const std::vector<PlannedFile>& files, const format::Checkpoint& catalogue);

/// Where the source's own README.md is kept.
inline constexpr char kSourceCardPath[] = "README.source.md";

using CompanionDigests = std::map<std::string, format::Digest>;

/// A place whose companions are compared. For a packed one, the manifest's digests are trusted.
struct CompanionPlace {
  format::Repository& repository;
  const format::Checkpoint& catalogue;
};

/// The digests that a packed repository records for the source's companions, by their source names.
[[nodiscard]] CompanionDigests recorded_companions(const format::Manifest& manifest);

/// Names of the existing companions; for an ordinary place that cannot be listed, of those that may exist.
[[nodiscard]] Result<std::set<std::string>> companion_names(const CompanionPlace& place, const std::stop_token& stop);

/// Digests of all companions that a packed place records; for an ordinary one, of the existing files in `names`. Adds
/// the bytes it reads to `bytes_read`.
[[nodiscard]] Result<CompanionDigests> companion_digests(const CompanionPlace& place,
                                                         const std::set<std::string>& names, unsigned jobs,
                                                         uint64_t& bytes_read, const std::stop_token& stop);

}  // namespace dspack::reshard
