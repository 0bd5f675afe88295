// The files of a packed repository that hold no weights: the source's own, byte for byte, and those that we write
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

/// A non-weight file of the source and where it goes.
struct Companion {
  std::string source_path;
  std::string path;  // in the packed repository: README.md becomes README.source.md
  uint64_t size_bytes = 0;
  std::vector<Declared> declared = {};  // what its bytes must be
};

/// What a companion of a packed repository is called in its source; nullopt: it is ours (index, card, kept headers).
[[nodiscard]] std::optional<std::string> source_name(const std::string& packed_path);

/// Whether config.json of a packed repository is one that its recipe has changed; the source's own lies beside it.
[[nodiscard]] bool has_changed_config(const format::Manifest& manifest);
/// source_name, where config.json may be such a one: then it is ours, and kSourceConfig is the source's.
[[nodiscard]] std::optional<std::string> source_name(const std::string& packed_path, const format::Manifest& manifest);

inline constexpr char kConfigPath[] = "config.json";
/// Where the source's config.json goes if a recipe has changed the model that it describes.
inline constexpr char kSourceConfig[] = "config.source.json";
/// NVIDIA's description of codes beside config.json, which loaders prefer to what that does not say.
inline constexpr char kQuantConfigPath[] = "hf_quant_config.json";

/// A description of the source's that is not one of the result, and the name under which it is kept.
struct SetAside {
  std::string_view source;
  std::string_view packed;
};
inline constexpr SetAside kSetAside[] = {{kConfigPath, kSourceConfig},
                                         {kQuantConfigPath, "hf_quant_config.source.json"}};

/// Finds the source's non-weight files by listing the place; where it cannot be listed, by the usual names and the
/// Python modules that config.json names.
[[nodiscard]] Result<std::vector<Companion>> find_companions(format::Repository& repository, unsigned jobs,
                                                             const std::stop_token& stop);

/// Copies one companion below `out`; complete or absent afterwards, and absent (corrupt) if its digest is known and
/// differs.
[[nodiscard]] Result<format::CompanionFile> copy_companion(const Companion& companion, format::Repository& repository,
                                                           const format::Path& out, format::FileSystem& files,
                                                           DurableFolders& folders, const std::stop_token& stop);

/// Copies one companion to `into`, durable but for its name. Its digest is known and differs: corrupt, and what came is
/// there.
[[nodiscard]] Result<format::CompanionFile> fetch_companion(const Companion& companion, format::Repository& repository,
                                                            const format::Path& into, format::FileSystem& files,
                                                            DurableFolders& folders, const std::stop_token& stop);

/// Writes text as a companion below `out`.
[[nodiscard]] Result<format::CompanionFile> write_companion(const std::string& path, std::string_view text,
                                                            const format::Path& out, format::FileSystem& files,
                                                            DurableFolders& folders);

/// The ordinary Hub index over the packed files, so that other loaders open the folder as it is. Where they cannot
/// (unreadable_reason) there must be none: they would take what they do not find for absent, and some would go on
/// without.
[[nodiscard]] std::string packed_index(const std::vector<PlannedFile>& files, const format::Checkpoint& catalogue);

/// Where the source's own README.md goes.
inline constexpr char kSourceCardPath[] = "README.source.md";

using CompanionDigests = std::map<std::string, format::Digest>;

/// A place whose companions are compared. A packed one is believed what its manifest says of them.
struct CompanionPlace {
  format::Repository& repository;
  const format::Checkpoint& catalogue;
};

/// Those that a packed repository has beside the files which are its own.
[[nodiscard]] CompanionDigests recorded_companions(const format::Manifest& manifest);

/// The names of those that are there; of an ordinary place that cannot be listed, of those that might be.
[[nodiscard]] Result<std::set<std::string>> companion_names(const CompanionPlace& place, const std::stop_token& stop);

/// Digests of all that a packed place records; of an ordinary one, of those of `names` that are there. Adds to
/// `bytes_read`.
[[nodiscard]] Result<CompanionDigests> companion_digests(const CompanionPlace& place,
                                                         const std::set<std::string>& names, unsigned jobs,
                                                         uint64_t& bytes_read, const std::stop_token& stop);

}  // namespace dspack::reshard
