// The context of a distant tier's two fetchers: where tensors come from, the cache that they go into, and whether that
// is full. On a full disk a run continues without the cache, and notes so once.
// Threads: thread-safe. Lifetime: borrows its parts. Errors: none.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "format/base/result.h"
#include "format/cache/weight_cache.h"
#include "runtime/access/distant_files.h"

namespace dspack::runtime {

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
