// Which commit a name meant when the Hub was last asked, kept in a folder of ours, so that a model that was used before
// can be used without a network: FOLDER/org--name/REVISION holds "COMMIT org/name".
// Threads: thread-safe; of two writers one wins. Errors: io, budget; what is damaged counts as not there.
#pragma once

#include <optional>
#include <string>

#include "format/file_system.h"
#include "format/hub/name.h"

namespace dspack::format {

struct HubCommit {
  std::string repository;  // the present name of one that was renamed
  std::string commit;
};

[[nodiscard]] std::optional<HubCommit> remembered_commit(const Path& folder, const HubName& name, FileSystem& files);
/// An empty folder: nothing is done.
[[nodiscard]] Result<void> remember_commit(const Path& folder, const HubName& name, const HubCommit& commit,
                                           FileSystem& files);

}  // namespace dspack::format
