#include "reshard/publish/situation.h"

#include <set>

#include <fmt/format.h>

#include "format/json.h"
#include "format/manifest.h"

namespace dspack::reshard {
namespace {

constexpr size_t kShownDigits = 16;  // digits of the manifest's digest in a title

struct Looking {
  const format::HubWriter& hub;
  const PublishTarget& target;
  SealedFolder& sealed;
  format::FileSystem& files;
  unsigned jobs;
  const std::stop_token& stop;

  /// Reads the listing at `head`, a commit of the revision, so that the difference belongs to that commit.
  Result<void> read(const std::string& revision, const std::string& head, Situation& situation) const {
    situation.revision = revision;
    situation.head = head;
    TRY_ASSIGN(situation.tree, hub.tree(head.empty() ? revision : head, stop));
    TRY(name_blobs(sealed, situation.tree, files, jobs, stop));
    situation.difference = compare(sealed.files, situation.tree);
    return {};
  }

  Result<void> look_at_pull_request(Situation& situation) const {
    TRY_ASSIGN(situation.pull_request, hub.find_pull_request(pull_request_title(sealed.manifest_sha256), stop));
    if (!situation.pull_request) {
      situation.revision.clear();  // its branch will start as a copy of the target branch
      return {};
    }
    const std::string revision = situation.pull_request->revision();
    TRY_ASSIGN(const format::Presence presence, hub.look(revision, stop));
    if (!presence.revision) {
      return Error{ErrorKind::not_found, fmt::format("{}: pull request {} has no branch {}; close it and run the same "
                                                     "command again",
                                                     hub.hub().page(), situation.pull_request->number, revision)};
    }
    return read(revision, presence.info.head, situation);
  }

  /// Refuses to delete files that dspack did not publish. Its own are those in the branch's manifest, and those that an
  /// unfinished publication leaves.
  Result<void> check_foreign(const Situation& situation, const std::string& branch_head) const {
    std::vector<std::string> others = foreign(situation.difference.extra);
    if (!others.empty() && situation.sealed) {
      TRY_ASSIGN(const std::set<std::string> old, files_of_manifest(branch_head));
      std::erase_if(others, [&](const std::string& path) { return old.contains(path); });
    }
    if (others.empty()) return {};
    return Error{ErrorKind::conflict,
                 fmt::format("{}: holds files that are no part of a packed repository ({}{}); publish into another "
                             "repository, or into a branch without them (--revision), or delete them first",
                             hub.hub().page(), others.front(),
                             others.size() == 1 ? "" : fmt::format(" and {} more", others.size() - 1))};
  }

  /// The files of the packed repository that is to be replaced.
  Result<std::set<std::string>> files_of_manifest(const std::string& head) const {
    const std::string& revision = head.empty() ? target.branch : head;
    TRY_ASSIGN(const std::string text,
               hub.hub().read_text(revision, format::kManifestPath, format::kManifestDocument.bytes, stop));
    const auto manifest = format::parse_manifest(text);
    if (!manifest) {
      return Error{
          ErrorKind::conflict,
          fmt::format("{}: has a {} that is not that of a packed repository which this version knows ({}), and "
                      "files that it may not delete; publish into another repository, or delete them first",
                      hub.hub().page(), format::kManifestPath, manifest.error().message)};
    }
    std::set<std::string> paths;
    for (const format::PackedFile& file : manifest->files)
      paths.insert(file.path);
    for (const format::CompanionFile& file : manifest->companions)
      paths.insert(file.path);
    return paths;
  }
};

}  // namespace

std::string pull_request_title(const format::Digest& manifest) {
  return "Packed repository " + to_hex(manifest).substr(0, kShownDigits);
}

Result<Situation> find_situation(const format::HubWriter& hub, const PublishTarget& target, SealedFolder& sealed,
                                 format::FileSystem& files, unsigned jobs, const std::stop_token& stop) {
  const Looking looking{hub, target, sealed, files, jobs, stop};
  Situation situation;
  TRY_ASSIGN(const format::Presence presence, hub.look(target.branch, stop));
  situation.repository = presence.repository;
  situation.branch = presence.revision;
  if (presence.repository && target.only_private && !presence.info.is_private) {
    return Error{ErrorKind::conflict,
                 fmt::format("{}: is public, and --private was asked for; make it private in its settings, or leave "
                             "--private out",
                             hub.hub().page())};
  }
  if (presence.repository && !presence.revision && target.branch.starts_with("refs/"))
    return Error{ErrorKind::not_found, fmt::format("{}: has no {}", hub.hub().page(), target.branch)};
  if (!presence.revision) {
    situation.by_pull_request = target.create_pull_request;
    situation.difference = compare(sealed.files, {});
    return situation;
  }
  TRY(looking.read(target.branch, presence.info.head, situation));
  situation.sealed = situation.tree.contains(format::kManifestPath);
  situation.on_branch = situation.difference.none();
  const bool replaces = situation.sealed && target.branch == format::kDefaultRevision;
  situation.by_pull_request = target.create_pull_request || replaces;
  if (situation.on_branch) return situation;
  TRY(looking.check_foreign(situation, presence.info.head));
  if (!situation.by_pull_request) return situation;
  TRY(looking.look_at_pull_request(situation));
  TRY(looking.check_foreign(situation, presence.info.head));
  return situation;
}

}  // namespace dspack::reshard
