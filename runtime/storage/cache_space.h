// Whether the cache still takes anything: on a full disk a run goes on without it, and says so once.
// Threads: thread-safe. Errors: none.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "format/base/result.h"

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

}  // namespace dspack::runtime
