// All files of a commit on the Hub with their sizes and LFS digests, by the paginated tree API: a few requests, where a
// HEAD a file would be thousands.
// Threads: thread-safe. Errors: network; invalid (not a listing, or one without end); budget (longer than any
// repository's may be).
#pragma once

#include <stop_token>
#include <string_view>
#include <vector>

#include "format/source/hub_revision.h"
#include "format/source/repository.h"

namespace dspack::format {

/// Adds the files of one page, an array of {"type":"file"|"directory","path","size","lfs":{"oid","size"}}; hidden ones
/// (.gitattributes) are left out. Errors: invalid.
[[nodiscard]] Result<void> parse_tree_page(std::string_view text, std::vector<ListedFile>& files);

/// Puts files in the order of their paths. Errors: invalid (one is listed twice).
[[nodiscard]] Result<void> sort_listing(std::vector<ListedFile>& files);

/// nullptr: not in it. The listing must be sorted.
[[nodiscard]] const ListedFile* find_listed(const std::vector<ListedFile>& files, std::string_view path);

/// The whole listing, sorted; `name.revision` is the commit. nullopt: the server has no such API.
[[nodiscard]] Result<std::optional<std::vector<ListedFile>>> list_tree(PatientClient& client, const HubDoor& door,
                                                                       const HubName& name,
                                                                       const std::stop_token& stop);

}  // namespace dspack::format
