#include "reshard/tensor_reader.h"

#include <fmt/format.h>

namespace dspack::reshard {

Result<void> TensorReader::stream(const format::TensorEntry& tensor, const format::ByteSink& sink,
                                  const std::stop_token& stop) {
  return stream(format::Extent{tensor.file, tensor.range}, sink, stop);
}

Result<void> TensorReader::stream(const format::Extent& extent, const format::ByteSink& sink,
                                  const std::stop_token& stop) {
  const format::CheckpointFile& file = catalogue_.files()[extent.file];
  if (!open_ || open_file_ != extent.file) {
    open_.reset();
    TRY_ASSIGN(open_, repository_.open(file.path, stop));
    open_file_ = extent.file;
    const bool same = file.version.empty() || file.version == open_->version();
    if (open_->size_bytes() != file.size_bytes || !same) {
      const std::string reason = same ? fmt::format("has {} bytes instead of {}", open_->size_bytes(), file.size_bytes)
                                      : "changed after its header was read";
      open_.reset();
      return Error{ErrorKind::corrupt, fmt::format("{}: {}", repository_.locate(file.path), reason)};
    }
  }
  return open_->stream(extent.range, sink, stop);
}

}  // namespace dspack::reshard
