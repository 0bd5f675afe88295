#include "format/file_system.h"

#include <algorithm>
#include <climits>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/base/size.h"

namespace dspack::format {
namespace {

constexpr size_t kMaxPathBytes = 4096;  // Linux's PATH_MAX and NAME_MAX
constexpr size_t kMaxFileNameBytes = 255;

/// Whether printable() would escape a character, apart from invalid UTF-8. Precondition: no backslash.
bool has_control_character(std::string_view text) {
  return printable(text).find("\\u") != std::string::npos;
}

}  // namespace

Result<void> ReadFile::map(uint64_t /*offset*/, std::span<std::byte> /*over*/) const {
  return Error{ErrorKind::unsupported, "this file cannot be mapped"};
}

Result<std::unique_ptr<ReadFile>> FileSystem::open_read_as(const Path& path, ReadMode mode) {
  if (mode == ReadMode::buffered) return open_read(path);
  return Error{ErrorKind::unsupported, fmt::format("{}: can only be read through the page cache here", path.string())};
}

Result<void> FileSystem::make_link(const Path& /*target*/, const Path& link) {
  return Error{ErrorKind::unsupported, link.string() + ": this file system has no symbolic links"};
}

Result<std::optional<Path>> FileSystem::read_link(const Path& /*path*/) {
  return std::optional<Path>();
}

Result<void> check_writers(const Path& path, Writers writers) {
  switch (writers) {
    case Writers::user: return {};
    case Writers::others:
      return invalid(
          fmt::format("{}: others may write to it, and what is in it would be believed; if it is yours "
                      "alone: chmod go-w {}",
                      path.string(), path.string()));
    case Writers::another_user:
      return invalid(
          fmt::format("{}: belongs to another user, and what is in it would be believed; choose another "
                      "one, or make a copy of your own",
                      path.string()));
  }
  DSPACK_CHECK(false, "somebody who writes");
}

Result<std::string> read_text(FileSystem& files, const Path& path, uint64_t limit_bytes) {
  TRY_ASSIGN(const auto file, files.open_read(path));
  if (file->size_bytes() > limit_bytes) {
    return Error{ErrorKind::budget, fmt::format("{}: {}, more than the {} that such a file may have", path.string(),
                                                size_words(file->size_bytes()), size_words(limit_bytes))};
  }
  std::string text(file->size_bytes(), '\0');
  TRY(file->read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Path temporary_of(const Path& path) {
  return path.parent_path() / fmt::format(".{}.tmp", path.filename().string());
}

Result<std::unique_ptr<WriteFile>> create_temporary(FileSystem& files, const Path& path, Access access) {
  const OpenMode mode = access == Access::owner ? OpenMode::create_private : OpenMode::create;
  const Path temporary = temporary_of(path);
  auto file = files.open_write(temporary, mode);
  if (file) return file;
  if (file.error().kind != ErrorKind::conflict) return file.error().in(path.string());  // the requested name
  TRY_ASSIGN(const auto there, files.stat(temporary));                                  // nullopt: a link to nothing
  if (there && there->is_directory && !there->is_link)
    return Error{ErrorKind::conflict,
                 temporary.string() + ": is a folder where a temporary file belongs; move it away"};
  TRY(files.remove_file(temporary));
  return files.open_write(temporary, mode);
}

Result<void> write_sealed(FileSystem& files, const Path& path, std::string_view bytes, Access access) {
  {
    TRY_ASSIGN(const auto file, create_temporary(files, path, access));
    TRY(file->write(0, as_bytes(bytes)));
    TRY(file->sync());
  }
  TRY(files.rename(temporary_of(path), path));
  return files.sync_folder(path.has_parent_path() ? path.parent_path() : Path("."));
}

std::optional<int> named_descriptor(const Path& path) {
  const Path name = path.lexically_normal();
  if (name == "/dev/stdin") return 0;
  if (name == "/dev/stdout") return 1;
  if (name == "/dev/stderr") return 2;
  if (name.parent_path() != "/dev/fd" && name.parent_path() != "/proc/self/fd") return std::nullopt;
  const std::string digits = name.filename().string();
  const std::optional<uint64_t> number = parse_decimal(digits);
  return number && *number <= INT_MAX ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

Result<bool> is_stream(FileSystem& files, const Path& path) {
  if (named_descriptor(path)) return true;
  TRY_ASSIGN(const auto info, files.stat(path));
  return info && !info->is_regular && !info->is_directory;
}

Result<void> write_output(FileSystem& files, const Path& path, std::string_view bytes) {
  TRY_ASSIGN(const bool stream, is_stream(files, path));
  if (!stream) return write_sealed(files, path, bytes);
  TRY_ASSIGN(const auto file, files.open_write(path, OpenMode::keep));
  return file->write(0, as_bytes(bytes));
}

std::optional<std::string> unsafe_path_reason(std::string_view path, HiddenNames hidden) {
  if (path.empty()) return "the path is empty";
  if (path.front() == '/') return "the path is absolute";
  if (path.size() > kMaxPathBytes) return "the path is too long";
  if (path.find('\\') != std::string_view::npos) return "the path has a backslash";
  if (has_control_character(path)) return "the path has a control character";
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part == "..") return "the path has a component \"..\"";
    if (part.size() > kMaxFileNameBytes) return "the path has a component that is too long";
    if (part.empty() || part == ".") return "the path has an empty component";
    if (part.front() == '.' && hidden == HiddenNames::refused)
      return "the path has a component that begins with a dot, as names of other programs' files do";
    begin = end + 1;
  }
  return std::nullopt;
}

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
    // It may be left by a run that was killed before it synced the name. Folders around the output are not ours: one
    // that cannot be opened was not written by such a run.
    const auto synced = sync_name(at);
    if (!synced && at != out_ && is_within(at, out_)) return synced.error();
    known_.insert(at);
  }
  // One at a time from the top, so that after a kill only the last one can lack its sync.
  for (auto made = missing.rbegin(); made != missing.rend(); ++made) {
    TRY(access_ == Access::owner ? files_.make_private_folders(*made) : files_.make_folders(*made));
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
  unlinked_.merge(seen);  // not earlier: what lies below a link is no link itself
  return {};
}

Result<void> DurableFolders::sync_name(const Path& folder) {
  return files_.sync_folder(folder.has_parent_path() ? folder.parent_path() : Path("."));
}

}  // namespace dspack::format
