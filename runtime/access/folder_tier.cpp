#include "runtime/access/folder_tier.h"

#include <algorithm>

namespace dspack::runtime {

unsigned default_open_files() {
  constexpr uint64_t kMax = 512;
  return static_cast<unsigned>(std::clamp<uint64_t>(format::open_file_limit() / 2, 1, kMax));
}

FolderTier::FolderTier(format::Repository& repository, const format::Checkpoint& checkpoint,
                       const FolderTierOptions& options)
    : repository_(repository),
      checkpoint_(checkpoint),
      options_(options),
      files_(options.max_open, [this](uint32_t file) { return open(file); }) {}

Result<void> FolderTier::read(uint32_t file, uint64_t offset, std::span<std::byte> into, const std::stop_token& stop) {
  TRY_ASSIGN(const format::OpenFiles::Use use, files_.use(file));
  while (!into.empty()) {
    if (stop.stop_requested()) return stopped();
    const uint64_t bytes = std::min<uint64_t>(into.size(), kLocalBlockBytes - offset % kLocalBlockBytes);
    TRY(use.file().read(offset, into.first(bytes)));
    offset += bytes;
    into = into.subspan(bytes);
  }
  return {};
}

Result<void> FolderTier::map(uint32_t file, uint64_t offset, std::span<std::byte> over) {
  TRY_ASSIGN(const format::OpenFiles::Use use, files_.use(file));
  return use.file().map(offset, over);
}

Result<std::unique_ptr<format::ReadFile>> FolderTier::open(uint32_t file) {
  const format::CheckpointFile& known = checkpoint_.files()[file];
  auto opened = repository_.open_file(known.path, options_.mode);
  for (const format::ReadMode other : {format::ReadMode::once, format::ReadMode::buffered}) {
    if (opened || options_.is_mode_required || opened.error().kind != ErrorKind::unsupported) break;
    opened = repository_.open_file(known.path, other);
  }
  if (!opened) return opened.error();
  TRY(format::check_known({.size_bytes = known.size_bytes, .version = {}}, (*opened)->size_bytes(), {},
                          repository_.locate(known.path)));
  return opened;
}

}  // namespace dspack::runtime
