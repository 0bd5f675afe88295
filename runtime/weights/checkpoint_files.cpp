#include "runtime/weights/checkpoint_files.h"

#include <fmt/format.h>

namespace dspack::runtime {

CheckpointFiles::CheckpointFiles(format::Repository& repository, const format::Checkpoint& checkpoint,
                                 unsigned max_open)
    : repository_(repository), checkpoint_(checkpoint), max_open_(max_open) {
  DSPACK_CHECK(max_open > 0, "no file may be open");
}

const std::string& CheckpointFiles::path(const format::TensorEntry& tensor) const {
  return checkpoint_.files()[tensor.file].path;
}

Result<void> CheckpointFiles::read(const format::TensorEntry& tensor, uint64_t offset, std::span<std::byte> into,
                                   ReadPurpose purpose, const std::stop_token& stop) {
  DSPACK_CHECK(offset <= tensor.range.size() && into.size() <= tensor.range.size() - offset, "read outside a tensor");
  TRY_ASSIGN(format::ByteSource * source, source_of(tensor.file, stop));
  if (auto done = source->read(tensor.range.begin + offset, into, stop); !done) {
    return done.error().in(fmt::format("reading {}", tensor.name));
  }
  bytes_read_[static_cast<size_t>(purpose)] += into.size();
  return {};
}

Result<format::ByteSource*> CheckpointFiles::source_of(uint32_t file, const std::stop_token& stop) {
  if (const auto found = by_file_.find(file); found != by_file_.end()) {
    open_.splice(open_.begin(), open_, found->second);
    return open_.front().source.get();
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
  return open_.front().source.get();
}

}  // namespace dspack::runtime
