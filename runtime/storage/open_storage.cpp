#include "runtime/storage/open_storage.h"

namespace dspack::runtime {

Result<OpenedStorage> open_storage(format::Repository& repository, format::Checkpoint& catalogue,
                                   const LocalAccess& local, const std::stop_token& stop) {
  OpenedStorage opened;
  if (auto* place = dynamic_cast<RemotePlace*>(&repository)) {
    TRY_ASSIGN(auto storage, place->open_storage(catalogue));
    opened.place = place;
    opened.remote = storage.get();
    opened.storage = std::move(storage);
    return opened;
  }
  TRY_ASSIGN(opened.io, choose_io(repository, catalogue, local.io, {.device = local.device}, stop));
  opened.storage = std::make_unique<LocalStorage>(repository, catalogue, storage_options(opened.io, local.verify));
  return opened;
}

}  // namespace dspack::runtime
