#include "reshard/publish/sealed_folder.h"

#include <algorithm>
#include <functional>
#include <set>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/http/content_digest.h"
#include "format/json.h"
#include "format/manifest.h"
#include "format/source/local_repository.h"
#include "reshard/run/output_folder.h"
#include "reshard/verbs/verify.h"

namespace dspack::reshard {
namespace {

constexpr size_t kNamed = 2;  // findings that an error message lists; the rest are counted

Error not_sealed(const format::Path& folder, std::string_view what) {
  return {ErrorKind::conflict,
          fmt::format("{}: {}; only a sealed packed repository is published", folder.string(), what)};
}

/// Combines all findings into one error.
Result<void> judge(const format::Path& folder, const std::vector<std::string>& findings) {
  if (findings.empty()) return {};
  std::string named;
  for (size_t i = 0; i < std::min(kNamed, findings.size()); ++i)
    named += (i == 0 ? "" : "; ") + findings[i];
  if (findings.size() > kNamed) named += fmt::format("; and {} more", findings.size() - kNamed);
  return Error{
      ErrorKind::corrupt,
      fmt::format(
          "{}: is not what was sealed: {}. Nothing is published; reshard repair fetches lost or damaged files again",
          folder.string(), named)};
}

using ByteConsumer = std::function<void(std::span<const std::byte>)>;

Result<void> read_all(const SealedFolder& sealed, const LocalFile& file, format::FileSystem& files,
                      const ByteConsumer& take, const std::stop_token& stop) {
  const auto repository = format::make_local_repository(sealed.folder, files, format::LinkRule::inside);
  TRY_ASSIGN(const auto source, repository->open(file.path, stop));
  if (source->size_bytes() != file.size_bytes) {
    return Error{ErrorKind::corrupt,
                 fmt::format("has {} bytes, {} were sealed", source->size_bytes(), file.size_bytes)};
  }
  const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
    take(bytes);
    return {};
  };
  return source->stream({0, file.size_bytes}, sink, stop);
}

}  // namespace

Result<SealedFolder> open_sealed(const format::Path& folder, format::FileSystem& files, const std::stop_token& stop) {
  const auto repository = format::make_local_repository(folder, files, format::LinkRule::inside);
  TRY_ASSIGN(const auto work, files.stat(work_folder(folder)));
  if (work) return not_sealed(folder, "unfinished; run the reshard command that makes it again to complete it");
  TRY_ASSIGN(const auto found, files.stat(folder / format::kManifestPath));
  if (!found) return not_sealed(folder, fmt::format("not a packed repository (it has no {})", format::kManifestPath));
  TRY_ASSIGN(const std::string text,
             repository->read_text(format::kManifestPath, format::kManifestDocument.bytes, stop));
  const auto manifest = format::parse_manifest(text);
  if (!manifest) return manifest.error().in(repository->locate(format::kManifestPath));

  SealedFolder sealed{.folder = folder, .files = {}, .manifest_sha256 = format::sha256(text), .total_bytes = 0};
  sealed.files.push_back({format::kManifestPath, text.size(), sealed.manifest_sha256, {}});
  for (const format::PackedFile& file : manifest->files) {
    format::StoredFile stored = stored_file(file);
    sealed.files.push_back({std::move(stored.path), stored.size_bytes, stored.sha256, {}});
  }
  for (const format::CompanionFile& file : manifest->companions)
    sealed.files.push_back({file.path, file.size_bytes, file.sha256, {}});
  std::ranges::sort(sealed.files, {}, &LocalFile::path);

  std::vector<std::string> findings;
  std::set<std::string> expected;
  for (const LocalFile& file : sealed.files) {
    sealed.total_bytes += file.size_bytes;
    expected.insert(file.path);
    TRY_ASSIGN(const auto info, files.stat(folder / file.path));
    if (!info || !info->is_regular) findings.push_back(file.path + " is missing");
    if (info && info->is_regular) TRY(repository->open(file.path, stop));  // a link must not lead out of the folder
    if (info && info->is_regular && info->size_bytes != file.size_bytes)
      findings.push_back(fmt::format("{} has {} bytes, {} were sealed", file.path, info->size_bytes, file.size_bytes));
  }
  TRY_ASSIGN(const auto listed, repository->list(stop));
  for (const format::ListedFile& file : listed.value_or(std::vector<format::ListedFile>())) {
    if (!expected.contains(file.path)) findings.push_back(file.path + " was not sealed (move it away)");
  }
  TRY(judge(folder, findings));
  return sealed;
}

Result<void> check_digests(const SealedFolder& sealed, format::FileSystem& files, unsigned jobs,
                           format::Progress& progress, const std::stop_token& stop) {
  Findings findings;
  progress.started("checking", sealed.total_bytes, sealed.files.size());
  const auto one = [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
    const LocalFile& file = sealed.files[i];
    format::Sha256 hash;
    const ByteConsumer take = [&](std::span<const std::byte> bytes) {
      hash.update(bytes);
      progress.advanced(bytes.size());
    };
    const auto read = read_all(sealed, file, files, take, stop_one);
    progress.item_done();
    if (!read && !is_finding(read.error())) return read.error();
    if (!read) findings.add(fmt::format("{}: {}", file.path, read.error().message));
    if (read && hash.finish() != file.sha256) findings.add(file.path + " differs from its digest");
    return {};
  };
  TRY(run_jobs(sealed.files.size(), jobs, one, stop));
  progress.finished();
  return judge(sealed.folder, findings.sorted());
}

Result<void> name_blobs(SealedFolder& sealed, const format::HubTree& remote, format::FileSystem& files, unsigned jobs,
                        const std::stop_token& stop) {
  std::vector<LocalFile*> wanted;
  for (LocalFile& file : sealed.files) {
    const auto there = remote.find(file.path);
    const bool comparable =
        there != remote.end() && !there->second.sha256 && there->second.size_bytes == file.size_bytes;
    if (comparable && file.blob.empty()) wanted.push_back(&file);
  }
  const auto one = [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
    LocalFile& file = *wanted[i];
    format::ContentHash blob = format::git_blob_hash(file.size_bytes);
    format::Sha256 hash;
    const ByteConsumer take = [&](std::span<const std::byte> bytes) {
      blob.update(bytes);
      hash.update(bytes);
    };
    const auto read = read_all(sealed, file, files, take, stop_one);
    if (!read) return read.error().in((sealed.folder / file.path).string());
    if (hash.finish() != file.sha256) return judge(sealed.folder, {file.path + " differs from its digest"});
    file.blob = blob.finish_hex();
    return {};
  };
  return run_jobs(wanted.size(), jobs, one, stop);
}

}  // namespace dspack::reshard
