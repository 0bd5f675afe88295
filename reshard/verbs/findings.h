// What verification finds: lines for people, gathered by many threads.
// Threads: thread-safe.
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "format/base/result.h"

namespace dspack::reshard {

/// Findings of many threads.
class Findings {
 public:
  void add(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  /// All lines, sorted; the object is empty afterwards.
  [[nodiscard]] std::vector<std::string> sorted() {
    std::sort(lines_.begin(), lines_.end());
    return std::move(lines_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;  // guarded by mutex_
};

/// What is read from a damaged file is a finding; what stops all reading (the network, Ctrl-C) is an error.
[[nodiscard]] inline bool is_finding(const Error& error) {
  return error.kind == ErrorKind::not_found || error.kind == ErrorKind::corrupt || error.kind == ErrorKind::io;
}

}  // namespace dspack::reshard
