// One place that a checkpoint is read from: its small files, and the way to open the tier of its weights. A local
// folder, or a distant repository through a cache folder of its own. Threads: single-thread; its files are as a
// Repository. Lifetime: owns the cache folder, whose lock it holds; the tier that it opened must not outlive it.
// Errors: those of cache and origin.
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
  bool verify = false;                // every expert against its digest when it is read
  kernels::Device* device = nullptr;  // of IoProbe
};

/// What the user says of places beside their names.
struct RemoteAccess {
  std::string config_file;   // in place of the place's config.json; empty: its own
  std::string cache_folder;  // of all caches; empty: the user's own
  std::string absent_from;   // where what a part of a model lacks is read; empty: nowhere
  double pause_second = 1;   // RemoteOptions
  DistantTierOptions tier;
};

struct OpenedTier {
  std::unique_ptr<Tier> tier;
  IoChoice io;  // how a local folder is read
};

/// Opens the tier of a place. The catalogue must be of the place; that of a distant one learns digests of earlier runs.
/// `wanted`: the tensors that will be asked for; nullopt: all. Of weights nothing is fetched yet.
using TierOpener =
    std::function<Result<OpenedTier>(format::Checkpoint& catalogue, std::optional<std::span<const uint32_t>> wanted,
                                     const LocalAccess& local, const std::stop_token& stop)>;

struct Place {
  std::shared_ptr<format::CacheFolder> cache{};                 // of a distant place
  std::shared_ptr<const format::TransferCounters> transfers{};  // likewise
  std::shared_ptr<format::Progress> progress{};                 // of opening and loading; null: nobody looks
  std::unique_ptr<format::Repository> files;  // small ones through the cache; weights as they are meant
  TierOpener open_tier;
};

/// The repository must be local, and is read as it is: compressed files are the caller's affair.
[[nodiscard]] Place make_folder_place(std::unique_ptr<format::Repository> repository);

struct DistantPlaceOptions {
  std::unique_ptr<format::Repository> origin;
  std::shared_ptr<format::TransferCounters> counters;  // of the origin
  std::shared_ptr<format::Progress> progress;          // the origin may tell it of pauses
  format::Path cache_root;
  DistantTierOptions tier;
};
/// Reads the manifest, if there is one; from the cache, if it is there.
[[nodiscard]] Result<Place> open_distant_place(DistantPlaceOptions options, format::FileSystem& files,
                                               const std::stop_token& stop);

/// The address of a place without secrets; what a cache is known by.
[[nodiscard]] std::string origin_of(const format::Repository& repository);
/// The folder below `root` that is the cache of this origin: readable, and different for different origins.
[[nodiscard]] format::Path cache_folder_of(const format::Path& root, const std::string& origin);

}  // namespace dspack::runtime
