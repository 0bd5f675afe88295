// The context of a distant tier's two fetchers: the files that tensors come from, the cache that they go into, and
// whether that is full. On a full disk a run continues without the cache, and notes so once.
// Threads: thread-safe. Lifetime: borrows its parts. Memory: an address and a link for each file that was read; no
// descriptor. Errors: those of the repository.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "format/base/result.h"
#include "format/cache/weight_cache.h"
#include "format/checkpoint.h"
#include "format/source/repository.h"
#include "runtime/access/tier.h"

namespace dspack::runtime {

/// The weight files of a distant repository, each opened once: its link is resolved once and used until it expires.
/// Also counts the bytes fetched from it. Borrows repository and catalogue.
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

class CacheSpace {
 public:
  explicit CacheSpace(std::function<void(std::string_view)> note) : note_(std::move(note)) {}

  [[nodiscard]] bool is_full() const { return is_full_.load(); }

  /// Converts the outcome of a write to the cache: no space becomes success and a note; other failures are returned.
  [[nodiscard]] Result<void> judge(const Result<void>& written) {
    if (written || written.error().kind != ErrorKind::budget) return written;
    say(written.error().message + "; what is fetched from here on is not kept");
    return {};
  }
  /// Marks the cache as full, and notes `reason` the first time.
  void say(std::string_view reason) {
    if (!is_full_.exchange(true)) note_(reason);
  }

 private:
  std::function<void(std::string_view)> note_;
  std::atomic<bool> is_full_{false};
};

struct FetchContext {
  DistantFiles& origin;
  format::WeightCache& cache;
  CacheSpace& space;
  unsigned connections = 1;  // in parallel
};

/// Attempts to fetch bytes that have a digest: bytes damaged by a network often arrive intact the second time.
inline constexpr unsigned kFetchTries = 2;

}  // namespace dspack::runtime
