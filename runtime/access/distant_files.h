// The weight files of a distant repository, each opened once: its link is resolved once and used until it expires. Also
// counts the bytes fetched from it.
// Threads: thread-safe. Lifetime: borrows repository and catalogue. Memory: an address and a link for each file that
// was read; no descriptor. Errors: those of the repository.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "format/checkpoint.h"
#include "format/source/repository.h"
#include "runtime/access/tier.h"

namespace dspack::runtime {

class DistantFiles {
 public:
  DistantFiles(format::Repository& repository, const format::Checkpoint& catalogue)
      : repository_(repository), catalogue_(catalogue) {}

  [[nodiscard]] const format::Checkpoint& catalogue() const { return catalogue_; }
  /// A file of the catalogue, opened at the first call.
  [[nodiscard]] Result<format::ByteSource*> file(uint32_t file, const std::stop_token& stop);
  /// `corrupt`: every try to fetch a tensor, or a block of its rows, brought a wrong digest.
  [[nodiscard]] Error always_wrong(uint32_t tensor, std::optional<uint64_t> block = {}) const;

  void count(WeightPurpose purpose, uint64_t bytes) { fetched_[static_cast<size_t>(purpose)] += bytes; }
  void count_refetch() { ++refetches_; }
  [[nodiscard]] uint64_t fetched_bytes(WeightPurpose purpose) const { return fetched_[static_cast<size_t>(purpose)]; }
  /// Number of fetches that were repeated after a digest mismatch.
  [[nodiscard]] uint64_t refetches() const { return refetches_; }

 private:
  format::Repository& repository_;
  const format::Checkpoint& catalogue_;
  std::mutex mutex_;
  std::unordered_map<uint32_t, std::unique_ptr<format::ByteSource>> files_;  // guarded by mutex_
  std::array<std::atomic<uint64_t>, kWeightPurposes> fetched_{};
  std::atomic<uint64_t> refetches_{0};
};

}  // namespace dspack::runtime
