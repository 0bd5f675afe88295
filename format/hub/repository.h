// A repository on the Hugging Face Hub, at one commit. Files of that commit in the Hub's local cache are read from
// there, the others over the network. Threads: thread-safe. Lifetime: borrows the FileSystem. Errors: as Repository;
// network also for a gated or private repository, or a file not cached while offline, each with the remedy.
#pragma once

#include "format/hub/name.h"
#include "format/source/repository.h"

namespace dspack::format {

/// Asks the Hub which commit the revision stands for, unless it is a commit id, options.hub_pinned gives the commit, or
/// the Hub is out of reach (HF_HUB_OFFLINE, no network) and a cache remembers the last known one. Reports a local
/// snapshot, a new name, and a remembered commit to options.on_note. The result borrows `files`.
[[nodiscard]] Result<std::unique_ptr<Repository>> open_hub_repository(const HubName& name, const RemoteOptions& options,
                                                                      FileSystem& files, const std::stop_token& stop);

}  // namespace dspack::format
