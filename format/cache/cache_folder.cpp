#include "format/cache/cache_folder.h"

#include <fmt/format.h>

#include "format/json.h"

namespace dspack::format {
namespace {

/// Whether a folder is a cache that has not been sealed.
Result<bool> is_cache_folder(const Path& root, FileSystem& files) {
  TRY_ASSIGN(const auto info, files.stat(cache_work_folder(root)));
  return info.has_value();
}

// The largest kind of small file that is kept.
constexpr uint64_t kMaxTextBytes = kTokenizerDocument.bytes;

/// Refuses a folder that holds files which are not a cache's.
Result<void> check_folder(const Path& root, FileSystem& files) {
  TRY_ASSIGN(const auto info, files.stat(root));
  if (!info) return {};
  if (!info->is_directory) return Error{ErrorKind::conflict, root.string() + ": exists and is not a folder"};
  TRY_ASSIGN(const bool ours, is_cache_folder(root, files));
  TRY_ASSIGN(const auto names, files.list(root));
  if (ours || names.empty()) return {};
  return Error{ErrorKind::conflict, root.string() + ": not empty, and no cache of dsrun; choose another with --cache"};
}

/// Refuses a folder with an empty journal and other files: a cache writes the journal's first record before anything
/// else.
Result<void> check_new(const Path& root, FileSystem& files) {
  TRY_ASSIGN(const auto names, files.list(root));
  if (names.size() == 1) return {};
  return Error{ErrorKind::conflict,
               fmt::format("{}: not empty, and its .dspack-cache has no journal of dsrun; choose another with --cache",
                           root.string())};
}

}  // namespace

Result<void> remove_cache_work(FileSystem& files, const Path& root) {
  const Path work = cache_work_folder(root);
  TRY_ASSIGN(const auto info, files.stat(work));
  if (!info || info->is_link || !info->is_directory) return {};
  for (const char* folder : {"origin", "headers", "part"})
    TRY(files.remove_tree(work / folder));
  TRY(files.remove_file(cache_journal_path(root)));
  TRY(files.remove_file(cache_lock_path(root)));
  return files.remove_empty_folder(work);
}

Result<std::unique_ptr<CacheFolder>> CacheFolder::open(FileSystem& files, Path root, std::string origin) {
  if (origin.empty()) {
    TRY_ASSIGN(const bool there, is_cache_folder(root, files));
    if (!there) return Error{ErrorKind::not_found, root.string() + ": is no cache of dsrun (it has no .dspack-cache)"};
  }
  TRY(check_folder(root, files));
  std::unique_ptr<CacheFolder> folder(new CacheFolder(files, std::move(root)));
  TRY(folder->folders_.make(cache_work_folder(folder->root_)));
  auto lock = files.lock(cache_lock_path(folder->root_), LockKind::exclusive);
  if (!lock && lock.error().kind == ErrorKind::conflict) {
    return Error{ErrorKind::conflict,
                 fmt::format("{}: another program uses this cache; wait for it, or choose another folder with --cache",
                             folder->root_.string())};
  }
  if (!lock) return lock.error();
  folder->lock_ = std::move(*lock);
  TRY(folder->load(std::move(origin)));
  return folder;
}

Result<void> CacheFolder::load(std::string origin) {
  const Path path = cache_journal_path(root_);
  auto text = read_text(files_, path, kMaxJournalBytes);
  if (!text && text.error().kind != ErrorKind::not_found) return text.error();
  const std::string journal = text ? *std::move(text) : std::string();
  CacheLoad load = parse_cache_journal(journal, origin);
  if (const auto* damaged = std::get_if<CacheDamaged>(&load)) {
    return Error{ErrorKind::corrupt, fmt::format("{}: damaged at byte {}: {}; remove {} to fetch everything anew",
                                                 path.string(), damaged->offset, damaged->reason, root_.string())};
  }
  if (const auto* foreign = std::get_if<CacheForeign>(&load)) {
    return Error{ErrorKind::conflict, fmt::format("{}: is the cache of {}; choose another folder with --cache",
                                                  root_.string(), foreign->origin)};
  }
  auto& loaded = std::get<CacheLoaded>(load);
  if (loaded.valid_bytes == 0) TRY(check_new(root_, files_));
  state_ = std::move(loaded.state);
  origin_ = origin.empty() ? cache_origin(journal).value_or("") : std::move(origin);
  TRY_ASSIGN(journal_, RecordLog::open(files_, path, loaded.valid_bytes));
  if (loaded.valid_bytes == 0) TRY(journal_->append(cache_line_origin(origin_)));
  return {};
}

std::optional<std::string> CacheFolder::checked_text(const Path& path, const KeptText& kept) {
  auto text = read_text(files_, path, kMaxTextBytes);
  if (!text || text->size() != kept.size_bytes || sha256(*text) != kept.sha256) return std::nullopt;
  return *std::move(text);
}

Result<void> CacheFolder::write(const Path& path, std::string_view text) {
  TRY(folders_.make(path.parent_path()));
  return write_sealed(files_, path, text);
}

std::optional<std::string> CacheFolder::text(std::string_view path) {
  const std::lock_guard lock(mutex_);
  const auto kept = state_.texts.find(path);
  if (kept == state_.texts.end()) return std::nullopt;
  return checked_text(cache_text_path(root_, path), kept->second);
}

bool CacheFolder::is_absent(std::string_view path) {
  const std::lock_guard lock(mutex_);
  return state_.absent.contains(path);
}

Result<void> CacheFolder::keep_text(std::string_view path, std::string_view text) {
  const std::lock_guard lock(mutex_);
  const KeptText kept{.size_bytes = text.size(), .sha256 = sha256(text)};
  TRY(write(cache_text_path(root_, path), text));
  TRY(journal_->append(cache_line(path, kept)));
  state_.texts.insert_or_assign(std::string(path), kept);
  return {};
}

Result<void> CacheFolder::keep_absent(std::string_view path) {
  const std::lock_guard lock(mutex_);
  TRY(journal_->append(cache_line_absent(path)));
  state_.absent.emplace(path);
  return {};
}

std::optional<CacheFolder::Header> CacheFolder::header(std::string_view path) {
  const std::lock_guard lock(mutex_);
  const auto kept = state_.headers.find(path);
  if (kept == state_.headers.end()) return std::nullopt;
  auto text = checked_text(cache_header_path(root_, path), kept->second.text);
  if (!text) return std::nullopt;
  return Header{.file_bytes = kept->second.file_bytes, .version = kept->second.version, .text = *std::move(text)};
}

Result<void> CacheFolder::keep_header(std::string_view path, const Header& header) {
  const std::lock_guard lock(mutex_);
  const KeptHeader kept{.file_bytes = header.file_bytes,
                        .version = header.version,
                        .text = {.size_bytes = header.text.size(), .sha256 = sha256(header.text)}};
  TRY(write(cache_header_path(root_, path), header.text));
  TRY(journal_->append(cache_line(path, kept)));
  state_.headers.insert_or_assign(std::string(path), kept);
  return {};
}

}  // namespace dspack::format
