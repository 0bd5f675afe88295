// A place that a checkpoint is read from: a local folder, or a distant repository with its own cache folder. It has
// small files, and opens the tier of its weights. Threads: single-thread; its files are as a Repository. Lifetime: owns
// the cache folder, whose lock it holds; the tier that it opened must not outlive it. Errors: those of cache and
// origin.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "format/cache/cached_repository.h"
#include "runtime/access/distant_tier.h"
#include "runtime/access/io_choice.h"

namespace dspack::runtime {

/// How a local folder is read.
struct LocalAccess {
  IoMethod io = IoMethod::automatic;
  bool verify = false;                // check every expert's digest when it is read
  kernels::Device* device = nullptr;  // IoProbe::device
};

/// The user's options for places.
struct RemoteAccess {
  std::string config_file;   // replaces the place's config.json; empty: does not
  std::string cache_folder;  // parent of all caches; empty: the user's default
  std::string absent_from;   // place of the weights that a part of a model lacks; empty: none
  double pause_second = 1;   // RemoteOptions::pause_second
  DistantTierOptions tier;
};

struct OpenedTier {
  std::unique_ptr<Tier> tier;
  IoChoice io;  // how a local folder is read
};

/// Opens the tier of a place, whose catalogue this must be; a distant place adds the digests of earlier runs to it.
/// `wanted`: the tensors that will be read; nullopt: all. Fetches no weights yet.
using TierOpener =
    std::function<Result<OpenedTier>(format::Checkpoint& catalogue, std::optional<std::span<const uint32_t>> wanted,
                                     const LocalAccess& local, const std::stop_token& stop)>;

struct CheckpointPlace {
  std::shared_ptr<format::CacheFolder> cache{};                 // distant places only
  std::shared_ptr<const format::TransferCounters> transfers{};  // distant places only
  std::shared_ptr<format::Progress> progress{};                 // receives opening and loading; may be null
  std::unique_ptr<format::Repository> files;                    // small ones through the cache; weights uncompressed
  TierOpener open_tier;
};

/// Precondition: a local repository. It is read as it is: the caller expands compressed files.
[[nodiscard]] CheckpointPlace make_folder_place(std::unique_ptr<format::Repository> repository);

struct DistantPlaceOptions {
  std::unique_ptr<format::Repository> origin;
  std::shared_ptr<format::TransferCounters> counters;  // the origin's
  std::shared_ptr<format::Progress> progress;          // the origin may report pauses to it
  format::Path cache_root;
  DistantTierOptions tier;
};
/// Reads the manifest if there is one, from the cache if it is there.
[[nodiscard]] Result<CheckpointPlace> open_distant_place(DistantPlaceOptions options, format::FileSystem& files,
                                                         const std::stop_token& stop);

/// The place's address without secrets, which identifies its cache.
[[nodiscard]] std::string origin_of(const format::Repository& repository);
/// The cache folder of this origin, below `root`: readable, and different for different origins.
[[nodiscard]] format::Path cache_folder_of(const format::Path& root, const std::string& origin);

}  // namespace dspack::runtime
