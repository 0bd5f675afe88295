// Digests of chosen tensors of a checkpoint: those that are known, and those that are read for it.
// Threads: TensorDigester::run may be called for several files at once. Lifetime: borrows repository and catalogue.
// Errors: as the repository.
#pragma once

#include <optional>
#include <vector>

#include "format/progress.h"
#include "reshard/run/tensor_reader.h"

namespace dspack::reshard {

class TensorDigester {
 public:
  TensorDigester(format::Repository& repository, const format::Checkpoint& catalogue);

  /// Asks for a tensor's digest (index of the catalogue). Before the first run().
  void want(uint32_t tensor);
  /// Files that hold wanted tensors of unknown digest: how many jobs there are.
  [[nodiscard]] uint64_t files() const { return by_file_.size(); }
  /// Bytes that all jobs will read.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  /// Reads what is wanted of the n-th such file, front to back, adjacent tensors in one range.
  [[nodiscard]] Result<void> run(uint64_t number, format::Progress& progress, const std::stop_token& stop);
  /// Once all jobs are done: the digest of a tensor that was wanted.
  [[nodiscard]] const format::Digest& digest(uint32_t tensor) const { return digests_[tensor].value(); }

 private:
  format::Repository& repository_;
  const format::Checkpoint& catalogue_;
  std::vector<std::optional<format::Digest>> digests_;  // per tensor; each job writes those of its own file only
  std::vector<std::vector<uint32_t>> by_file_;          // wanted tensors of one file each
  std::vector<int64_t> group_of_file_;                  // index into by_file_, or -1
  uint64_t bytes_ = 0;
};

}  // namespace dspack::reshard
