// What the two fetchers of a distant tier share: where tensors come from, the cache that they go into, and whether that
// still takes anything. On a full disk a run goes on without the cache, and says so once.
// Threads: thread-safe. Lifetime: borrows what it names. Errors: none.
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

  /// The outcome of writing to the cache: no space becomes success and a note, any other failure stays one.
  [[nodiscard]] Result<void> judge(const Result<void>& written) {
    if (written || written.error().kind != ErrorKind::budget) return written;
    say(written.error().message + "; what is fetched from here on is not kept");
    return {};
  }
  /// Nothing more is kept, for this reason.
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
  unsigned connections = 1;  // at a time
};

/// Tries to fetch bytes that have a digest: what a network spoils on the way is often whole the second time.
inline constexpr unsigned kFetchTries = 2;

}  // namespace dspack::runtime
