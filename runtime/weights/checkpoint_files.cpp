#include "runtime/weights/checkpoint_files.h"

#include <fmt/format.h>

namespace dspack::runtime {

Result<void> CheckpointFiles::read(const format::TensorEntry& tensor, uint64_t offset, std::span<std::byte> into,
                                   ReadPurpose purpose, const std::stop_token& stop) {
  DSPACK_CHECK(offset <= tensor.range.size() && into.size() <= tensor.range.size() - offset, "read outside a tensor");
  if (auto done = storage_.read(tensor.file, tensor.range.begin + offset, into, stop); !done) {
    return done.error().in(fmt::format("reading {}", tensor.name));
  }
  bytes_read_[static_cast<size_t>(purpose)] += into.size();
  return {};
}

}  // namespace dspack::runtime
