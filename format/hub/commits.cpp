#include "format/hub/commits.h"

#include <algorithm>

#include <fmt/format.h>

namespace dspack::format {
namespace {

constexpr uint64_t kMaxBytes = 512;

/// A revision may have slashes, of which a branch and a branch below it would need a file and a folder of one name.
Path file_of(const Path& folder, const HubName& name) {
  std::string repository = name.repository;
  repository.replace(repository.find('/'), 1, "--");
  std::string revision = name.revision;
  for (size_t at = 0; (at = revision.find_first_of("/%", at)) != std::string::npos; at += 3)
    revision.replace(at, 1, revision[at] == '/' ? "%2F" : "%25");
  return folder / repository / revision;
}

std::string text_of(const HubCommit& commit) {
  return fmt::format("{} {}\n", commit.commit, commit.repository);
}

}  // namespace

std::optional<HubCommit> remembered_commit(const Path& folder, const HubName& name, FileSystem& files) {
  if (folder.empty()) return std::nullopt;
  const auto text = read_text(files, file_of(folder, name), kMaxBytes);
  if (!text || !text->ends_with('\n')) return std::nullopt;
  const size_t space = std::min(text->find(' '), text->size() - 1);
  HubCommit commit{.repository = text->substr(space + 1, text->size() - space - 2), .commit = text->substr(0, space)};
  const auto repository = parse_hub_name(commit.repository);
  if (!is_commit_id(commit.commit) || !repository || repository->repository != commit.repository) return std::nullopt;
  return commit;
}

Result<void> remember_commit(const Path& folder, const HubName& name, const HubCommit& commit, FileSystem& files) {
  if (folder.empty()) return {};
  const Path path = file_of(folder, name);
  const auto kept = read_text(files, path, kMaxBytes);
  if (kept && *kept == text_of(commit)) return {};
  TRY(files.make_private_folders(path.parent_path()));
  return write_sealed(files, path, text_of(commit));
}

}  // namespace dspack::format
