#include "format/durable_folders.h"

#include <algorithm>
#include <vector>

namespace dspack::format {

bool is_within(const Path& inner, const Path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

Result<void> DurableFolders::make(const Path& folder) {
  const std::lock_guard lock(mutex_);
  TRY(check_links(folder));
  std::vector<Path> missing;
  Path at = folder;
  for (; !at.empty() && !known_.contains(at) && at != at.parent_path(); at = at.parent_path()) {
    TRY_ASSIGN(const auto info, files_.stat(at));
    if (info) break;
    missing.push_back(at);
  }
  if (!at.empty() && !known_.contains(at) && at != at.parent_path()) {
    // It may come from a run that was killed before it had synced the name. Folders around the output are not ours: one
    // that we may not open is not one that such a run has written to.
    const auto synced = sync_name(at);
    if (!synced && at != out_ && is_within(at, out_)) return synced.error();
    known_.insert(at);
  }
  // One at a time from above, so that after a kill the last one alone can lack its sync.
  for (auto made = missing.rbegin(); made != missing.rend(); ++made) {
    TRY(access_ == FolderAccess::owner ? files_.make_private_folders(*made) : files_.make_folders(*made));
    TRY(sync_name(*made));
    known_.insert(*made);
  }
  return {};
}

/// The output folder itself may be a link: the user named it.
Result<void> DurableFolders::check_links(const Path& folder) {
  std::set<Path> seen;
  for (Path at = folder; at != out_ && is_within(at, out_) && !unlinked_.contains(at); at = at.parent_path()) {
    TRY_ASSIGN(const auto target, files_.read_link(at));
    if (target) {
      return Error{ErrorKind::invalid, at.string() +
                                           ": is a symbolic link where a folder of ours belongs; what it leads to is "
                                           "not written to: remove the link"};
    }
    seen.insert(at);
  }
  unlinked_.merge(seen);  // not before: what lies below a link is none itself
  return {};
}

Result<void> DurableFolders::sync_name(const Path& folder) {
  return files_.sync_folder(folder.has_parent_path() ? folder.parent_path() : Path("."));
}

}  // namespace dspack::format
