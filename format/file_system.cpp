#include "format/file_system.h"

#include <fmt/format.h>

namespace dspack::format {

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

Result<std::string> read_text(FileSystem& files, const Path& path, uint64_t limit_bytes) {
  TRY_ASSIGN(const auto file, files.open_read(path));
  if (file->size_bytes() > limit_bytes) {
    return Error{ErrorKind::budget, fmt::format("{}: {} bytes, more than the {} that such a file may have",
                                                path.string(), file->size_bytes(), limit_bytes)};
  }
  std::string text(file->size_bytes(), '\0');
  TRY(file->read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<void> write_sealed(FileSystem& files, const Path& path, std::string_view bytes) {
  Path temporary = path;
  temporary += ".tmp";
  {
    TRY_ASSIGN(const auto file, files.open_write(temporary, OpenMode::truncate));
    TRY(file->write(0, as_bytes(bytes)));
    TRY(file->sync());
  }
  TRY(files.rename(temporary, path));
  return files.sync_folder(path.has_parent_path() ? path.parent_path() : Path("."));
}

std::optional<std::string> unsafe_path_reason(std::string_view path) {
  if (path.empty()) return "the path is empty";
  if (path.front() == '/') return "the path is absolute";
  for (const char c : path) {
    if (c == '\\') return "the path has a backslash";
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return "the path has a control character";
  }
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part == "..") return "the path has a component \"..\"";
    if (part.empty() || part == ".") return "the path has an empty component";
    begin = end + 1;
  }
  return std::nullopt;
}

}  // namespace dspack::format
