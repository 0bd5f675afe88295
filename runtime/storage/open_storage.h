// The storage of a repository's weights, whichever kind it is. Nothing is fetched yet.
// Threads: single-thread. Lifetime: the storage borrows repository and catalogue. Errors: those of choose_io and of
// RemotePlace::open_storage.
#pragma once

#include <memory>

#include "runtime/storage/io_choice.h"
#include "runtime/storage/remote_place.h"
#include "runtime/storage/remote_storage.h"

namespace dspack::runtime {

struct OpenedStorage {
  std::unique_ptr<WeightStorage> storage;
  RemotePlace* place = nullptr;     // what the repository is, if it is distant
  RemoteStorage* remote = nullptr;  // what `storage` is then
  IoChoice io;                      // how a local folder is read
};

struct LocalAccess {
  IoMethod io = IoMethod::automatic;
  bool verify = false;                // every expert against its digest when it is read
  kernels::Device* device = nullptr;  // of IoProbe
};

/// The catalogue must be of the repository; of a distant one it learns digests of earlier runs.
[[nodiscard]] Result<OpenedStorage> open_storage(format::Repository& repository, format::Checkpoint& catalogue,
                                                 const LocalAccess& local, const std::stop_token& stop);

}  // namespace dspack::runtime
