#include "runtime/storage/local_storage.h"

#include <fmt/format.h>

namespace dspack::runtime {

LocalStorage::LocalStorage(format::Repository& repository, const format::Checkpoint& checkpoint, unsigned max_open)
    : repository_(repository), checkpoint_(checkpoint), max_open_(max_open) {
  DSPACK_CHECK(max_open > 0, "no file may be open");
}

Result<void> LocalStorage::read(uint32_t file, uint64_t offset, std::span<std::byte> into,
                                const std::stop_token& stop) {
  TRY_ASSIGN(const auto source, source_of(file, stop));
  return source->read(offset, into, stop);
}

Result<std::shared_ptr<format::ByteSource>> LocalStorage::source_of(uint32_t file, const std::stop_token& stop) {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_file_.find(file); found != by_file_.end()) {
    open_.splice(open_.begin(), open_, found->second);
    return open_.front().source;
  }
  const format::CheckpointFile& known = checkpoint_.files()[file];
  TRY_ASSIGN(auto source, repository_.open(known.path, stop));
  if (source->size_bytes() != known.size_bytes) {
    return Error{ErrorKind::corrupt,
                 fmt::format("{} has {} bytes where {} are expected; it is truncated or was replaced, fetch it again",
                             repository_.locate(known.path), source->size_bytes(), known.size_bytes)};
  }
  if (open_.size() >= max_open_) {
    by_file_.erase(open_.back().file);
    open_.pop_back();
  }
  open_.push_front({.file = file, .source = std::move(source)});
  by_file_[file] = open_.begin();
  return open_.front().source;
}

}  // namespace dspack::runtime
