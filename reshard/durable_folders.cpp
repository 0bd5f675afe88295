#include "reshard/durable_folders.h"

#include <vector>

namespace dspack::reshard {

using format::Path;

Result<void> DurableFolders::make(const Path& folder) {
  const std::lock_guard lock(mutex_);
  if (folder.empty() || known_.contains(folder)) return {};
  std::vector<Path> missing;
  for (Path at = folder; !at.empty() && !known_.contains(at); at = at.parent_path()) {
    TRY_ASSIGN(const auto info, files_.stat(at));
    if (info) break;
    missing.push_back(at);
    if (at == at.parent_path()) break;
  }
  TRY(files_.make_folders(folder));
  for (const Path& made : missing) {
    TRY(files_.sync_folder(made.has_parent_path() ? made.parent_path() : Path(".")));
    known_.insert(made);
  }
  known_.insert(folder);
  return {};
}

}  // namespace dspack::reshard
