// All files of a revision on the Hub with their sizes and digests, by the paginated tree API: a few requests instead of
// a HEAD request per file.
// Threads: thread-safe. Errors: network; invalid (not a listing, or one without end); budget (longer than the limit).
#pragma once

#include <map>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "format/hub/client.h"
#include "format/source/repository.h"

namespace dspack::format {

/// The Hub's description of a file.
struct HubFile : ListedFile {
  std::string blob{};  // git's hash of a regular file, 7 to 64 hex digits; empty: unknown, or LFS
};
using HubTree = std::map<std::string, HubFile>;  // by path

/// Adds the files of one page, an array of {"type":"file"|"directory","path","size","oid","lfs":{"oid","size"}}.
/// Errors: invalid.
[[nodiscard]] Result<void> parse_tree_page(std::string_view text, std::vector<HubFile>& files);

/// Sorts files by path. Errors: invalid (one is listed twice).
[[nodiscard]] Result<void> sort_listing(std::vector<HubFile>& files);

/// The files that belong to a checkpoint: without hidden ones (.gitattributes).
[[nodiscard]] std::vector<ListedFile> visible_files(const std::vector<HubFile>& files);

/// nullptr: not listed. `files` must be sorted.
[[nodiscard]] const ListedFile* find_listed(const std::vector<ListedFile>& files, std::string_view path);

/// The whole listing of a revision, sorted, hidden files included. nullopt: the server has no such API.
[[nodiscard]] Result<std::optional<std::vector<HubFile>>> list_tree(const HubClient& hub, const std::string& revision,
                                                                    const std::stop_token& stop);

}  // namespace dspack::format
