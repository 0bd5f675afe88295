// Tensors of a checkpoint, read one after another.
// Threads: a reader belongs to one thread at a time. Lifetime: borrows repository and catalogue. Memory: one file open,
// and what its stream holds (about 1 MiB).
// Errors: as the repository; corrupt if a file is not the one that was catalogued. They name the file.
#pragma once

#include <memory>
#include <vector>

#include "format/checkpoint.h"
#include "format/source/repository.h"

namespace dspack::reshard {

class TensorReader {
 public:
  TensorReader(format::Repository& repository, const format::Checkpoint& catalogue)
      : repository_(repository), catalogue_(catalogue) {}

  /// Passes all bytes of a tensor through `sink`, in order. The file stays open for the next one.
  [[nodiscard]] Result<void> stream(const format::TensorEntry& tensor, const format::ByteSink& sink,
                                    const std::stop_token& stop);
  /// The same for any range of a file of the catalogue.
  [[nodiscard]] Result<void> stream(const format::Extent& extent, const format::ByteSink& sink,
                                    const std::stop_token& stop);
  /// A whole tensor in memory.
  [[nodiscard]] Result<std::vector<std::byte>> read(const format::TensorEntry& tensor, const std::stop_token& stop);

 private:
  Result<format::ByteSource*> open(uint32_t file, const std::stop_token& stop);

  format::Repository& repository_;
  const format::Checkpoint& catalogue_;
  std::unique_ptr<format::ByteSource> open_;
  uint32_t open_file_ = 0;  // which one `open_` is
};

}  // namespace dspack::reshard
