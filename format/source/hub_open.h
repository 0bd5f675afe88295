// Opening a repository on the Hub: which commit a name means, and what of it is on this machine already.
// Threads: thread-safe. Errors: those of resolve_revision; network (offline, and no cache knows the name).
#pragma once

#include "format/source/hub_name.h"
#include "format/source/repository.h"

namespace dspack::format {

/// Asks the Hub which commit the revision means, unless it is one, options.hub_pinned tells, or the Hub is out of reach
/// (HF_HUB_OFFLINE, no network) and a cache remembers what it meant last. Tells options.on_note of a local snapshot, a
/// new name, and an answer from memory. The result borrows `files`.
[[nodiscard]] Result<std::unique_ptr<Repository>> open_hub_repository(const HubName& name, const RemoteOptions& options,
                                                                      FileSystem& files, const std::stop_token& stop);

}  // namespace dspack::format
