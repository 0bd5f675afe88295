// Reads tensors of a checkpoint, one after another; and for their digests, those of a file front to back.
// Threads: a reader belongs to one thread at a time; TensorDigester::run may be called for several files at once.
// Lifetime: borrows repository and catalogue. Memory: one open file, and its stream's buffers (about 1 MiB). Errors: as
// the repository; corrupt if a file is not the one that was catalogued. They name the file.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "format/checkpoint.h"
#include "format/progress.h"
#include "format/source/repository.h"

namespace dspack::reshard {

/// Reads tensors one after another.
class TensorReader {
 public:
  TensorReader(format::Repository& repository, const format::Checkpoint& catalogue)
      : repository_(repository), catalogue_(catalogue) {}

  /// Passes all bytes of a tensor through `sink`, in order. The file stays open for the next one.
  [[nodiscard]] Result<void> stream(const format::TensorEntry& tensor, const format::ByteSink& sink,
                                    const std::stop_token& stop);
  /// The same for any range of a catalogued file.
  [[nodiscard]] Result<void> stream(const format::Extent& extent, const format::ByteSink& sink,
                                    const std::stop_token& stop);
  /// Reads a whole tensor into memory.
  [[nodiscard]] Result<std::vector<std::byte>> read(const format::TensorEntry& tensor, const std::stop_token& stop);

 private:
  Result<format::ByteSource*> open(uint32_t file, const std::stop_token& stop);

  format::Repository& repository_;
  const format::Checkpoint& catalogue_;
  std::unique_ptr<format::ByteSource> open_;
  uint32_t open_file_ = 0;  // catalogue index of `open_`
};

/// Digests of chosen tensors: taken from the catalogue if it has them, else computed.
class TensorDigester {
 public:
  TensorDigester(format::Repository& repository, const format::Checkpoint& catalogue);

  /// Requests a tensor's digest (catalogue index). Call before the first run().
  void want(uint32_t tensor);
  /// Number of files with requested tensors whose digests are unknown: one job each.
  [[nodiscard]] uint64_t files() const { return by_file_.size(); }
  /// Bytes that all jobs read in total.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  /// Reads the requested tensors of the n-th such file, front to back, adjacent tensors in one range.
  [[nodiscard]] Result<void> run(uint64_t number, format::Progress& progress, const std::stop_token& stop);
  /// The digest of a requested tensor, once all jobs are done.
  [[nodiscard]] const format::Digest& digest(uint32_t tensor) const { return digests_[tensor].value(); }

 private:
  format::Repository& repository_;
  const format::Checkpoint& catalogue_;
  std::vector<std::optional<format::Digest>> digests_;  // per tensor; each job writes those of its own file only
  std::vector<std::vector<uint32_t>> by_file_;          // requested tensors, grouped by file
  std::vector<int64_t> group_of_file_;                  // index into by_file_, or -1
  uint64_t bytes_ = 0;
};

/// The digest of a range of a file, or of a whole file.
[[nodiscard]] Result<format::Digest> digest_of_range(format::ByteSource& file, ByteRange range,
                                                     const std::stop_token& stop);
[[nodiscard]] Result<format::Digest> digest_of_file(const format::Path& path, format::FileSystem& files,
                                                    const std::stop_token& stop);

}  // namespace dspack::reshard
