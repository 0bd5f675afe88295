// The catalogue and the storage of a repository's weights, whichever kind it is: local, distant, or a part of a model
// with the place that has the rest.
// Threads: single-thread. Lifetime: the storage borrows repository and catalogue. Errors: those of choose_io, of
// RemotePlace::open_storage and of CompletedPlace; invalid (the rest is of another checkpoint).
#pragma once

#include <memory>
#include <vector>

#include "runtime/storage/io_choice.h"
#include "runtime/storage/remote_place.h"
#include "runtime/storage/remote_storage.h"

namespace dspack::runtime {

/// A distant place among those that weights come from.
struct OpenedRemote {
  RemotePlace* place = nullptr;
  RemoteStorage* storage = nullptr;
};

struct OpenedStorage {
  std::unique_ptr<WeightStorage> storage;
  std::vector<OpenedRemote> remotes;  // none: all weights lie in local folders
  IoChoice io;                        // how a local folder is read; where there are two, the part's
};

struct LocalAccess {
  IoMethod io = IoMethod::automatic;
  bool verify = false;                // every expert against its digest when it is read
  kernels::Device* device = nullptr;  // of IoProbe
};

/// `layers`: of config.json, without MTP modules.
[[nodiscard]] Result<format::Checkpoint> open_catalogue(format::Repository& repository, uint32_t layers,
                                                        const std::stop_token& stop);

/// The catalogue must be of the repository; of a distant one it learns digests of earlier runs. Of weights nothing is
/// fetched yet, but for a few small tensors of a place that must prove to have the rest of a part.
[[nodiscard]] Result<OpenedStorage> open_storage(format::Repository& repository, format::Checkpoint& catalogue,
                                                 const LocalAccess& local, const std::stop_token& stop);

}  // namespace dspack::runtime
