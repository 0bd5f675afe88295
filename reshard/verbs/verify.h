// `reshard verify DIR`: reads a packed repository again and compares every digest. Also the findings of any
// verification: lines for people, collected from many threads. The comparison with a source is in verify_source.h.
// Threads: one call; reads `jobs` files at a time. Errors: those that prevent reading at all (no manifest, network);
// differences are findings, not errors.
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/progress.h"
#include "format/source/repository.h"

namespace dspack::reshard {

/// Collects the findings of many threads. Threads: thread-safe.
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

/// Whether an error is a finding about a damaged file. Errors that stop all reading (the network, Ctrl-C) are not.
[[nodiscard]] inline bool is_finding(const Error& error) {
  return error.kind == ErrorKind::not_found || error.kind == ErrorKind::corrupt || error.kind == ErrorKind::io;
}

struct VerifyReport {
  uint64_t files = 0;
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  uint64_t companions = 0;            // other files that were compared with the source's
  std::vector<std::string> findings;  // one line each: file, tensor if known, what is wrong; sorted
};

/// Checks that every file in the manifest exists with its size and digest, and every tensor and row block with its own.
[[nodiscard]] Result<VerifyReport> verify_digests(format::Repository& packed, const format::Checkpoint& catalogue,
                                                  unsigned jobs, format::Progress& progress,
                                                  const std::stop_token& stop);

}  // namespace dspack::reshard
