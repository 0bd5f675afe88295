#include "format/hub/snapshot.h"

#include <algorithm>

#include <fmt/format.h>

#include "format/digest.h"
#include "format/index.h"
#include "format/json.h"
#include "format/manifest.h"

namespace dspack::format {
namespace {

constexpr uint64_t kMaxBytes = 512;

/// Encodes slashes in a revision: a branch and another below it would need a file and a folder of the same name.
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

namespace {

constexpr uint64_t kMaxRefBytes = 256;
constexpr char kBlobs[] = "blobs";  // within a repository's folder, and in the cache's root
constexpr char kSingleFile[] = "model.safetensors";

/// Whether `path` lies below `folder`; both without links and dots.
bool lies_below(const Path& path, const Path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

std::string_view first_line(std::string_view text) {
  return text.substr(0, text.find_first_of(" \t\r\n"));
}

}  // namespace

Path cached_repository_folder(const Path& cache, std::string_view repository) {
  const size_t slash = repository.find('/');
  return cache / fmt::format("models--{}--{}", repository.substr(0, slash), repository.substr(slash + 1));
}

std::optional<std::string> cached_commit(const Path& cache, const HubName& name, FileSystem& files) {
  if (cache.empty() || unsafe_path_reason(name.revision)) return std::nullopt;
  const Path ref = cached_repository_folder(cache, name.repository) / "refs" / name.revision;
  const auto info = files.stat(ref);
  if (!info || !*info || !(*info)->is_regular) return std::nullopt;
  const auto text = read_text(files, ref, kMaxRefBytes);
  if (!text || !is_commit_id(first_line(*text))) return std::nullopt;
  return std::string(first_line(*text));
}

std::optional<HubSnapshot> HubSnapshot::find(const Path& cache, const HubName& name, FileSystem& files) {
  if (cache.empty() || !is_commit_id(name.revision)) return std::nullopt;
  const Path repository = cached_repository_folder(cache, name.repository);
  const Path folder = repository / "snapshots" / name.revision;
  const auto info = files.stat(folder);
  if (!info || !*info || !(*info)->is_directory) return std::nullopt;
  std::error_code failed;
  Path root = std::filesystem::canonical(repository, failed);
  if (failed) return std::nullopt;
  Path store = std::filesystem::canonical(cache, failed) / kBlobs;
  if (failed) return std::nullopt;
  HubSnapshot snapshot(std::move(root), std::move(store), folder, files);
  snapshot.weights_ = snapshot.count_weights();
  return snapshot;
}

std::optional<HubSnapshot::File> HubSnapshot::file(std::string_view path) const {
  if (unsafe_path_reason(path)) return std::nullopt;
  std::error_code failed;
  const Path target = std::filesystem::canonical(folder_ / path, failed);
  if (failed) return std::nullopt;
  const auto info = files_->stat(target);
  if (!info || !*info || !(*info)->is_regular) return std::nullopt;
  if (lies_below(target, root_)) {
    const bool is_blob = target.parent_path() == root_ / kBlobs;
    return File{target, is_blob ? target.filename().string() : std::string()};
  }
  const auto link = shared_blob_link(path, target);
  if (!link) return std::nullopt;
  return File{target, link->filename().string()};
}

/// The repository's own link to a file in the shared store, whose name is the ETag; nullopt: the file lies elsewhere,
/// or the snapshot does not lead to it by such a link.
std::optional<Path> HubSnapshot::shared_blob_link(std::string_view path, const Path& target) const {
  const std::string name = target.filename().string();
  if (!parse_digest(name) || target != store_ / name.substr(0, 2) / name) return std::nullopt;
  std::error_code failed;
  const Path entry = folder_ / path;
  const Path leads_to = std::filesystem::read_symlink(entry, failed);
  if (failed) return std::nullopt;
  const Path link = (entry.parent_path() / leads_to).lexically_normal();
  // Resolves links in the parent folder, but not the link itself.
  const Path parent = std::filesystem::canonical(link.parent_path(), failed);
  if (failed || parent != root_ / kBlobs || std::filesystem::canonical(link, failed) != target) return std::nullopt;
  return link;
}

std::optional<std::string> HubSnapshot::text(std::string_view path) const {
  const auto found = file(path);
  if (!found) return std::nullopt;
  auto text = read_text(*files_, found->path, kManifestDocument.bytes);
  return text ? std::optional(*std::move(text)) : std::nullopt;
}

HubSnapshot::Weights HubSnapshot::count_weights() const {
  std::vector<std::string> paths;
  if (const auto manifest_text = text(kManifestPath)) {
    const auto manifest = parse_manifest(*manifest_text);
    if (!manifest) return {};
    std::ranges::transform(manifest->files, std::back_inserter(paths), &PackedFile::path);
  } else if (const auto index_text = text(kIndexPath)) {
    const auto index = parse_index(*index_text);
    if (!index) return {};
    paths = index->files;
  } else {
    paths.emplace_back(kSingleFile);
  }
  Weights weights{.files = paths.size(), .missing = {}};
  std::ranges::copy_if(paths, std::back_inserter(weights.missing), [this](const std::string& p) { return !file(p); });
  return weights;
}

}  // namespace dspack::format
