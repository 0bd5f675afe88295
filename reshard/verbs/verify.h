// `reshard verify DIR`: reads a packed repository again and compares every digest. And what any verification finds:
// lines for people, gathered by many threads. The comparison with a source is in verify_source.h.
// Threads: one call; reads `jobs` files at a time. Errors: what keeps it from reading at all (no manifest, network);
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

/// Findings of many threads. Threads: thread-safe.
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

struct VerifyReport {
  uint64_t files = 0;
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  uint64_t companions = 0;            // other files that were compared with the source's
  std::vector<std::string> findings;  // one line each: file, tensor if known, what is wrong; sorted
};

/// Every file of the manifest: present, of its size, with its digest; every tensor and row block with its own.
[[nodiscard]] Result<VerifyReport> verify_digests(format::Repository& packed, const format::Checkpoint& catalogue,
                                                  unsigned jobs, format::Progress& progress,
                                                  const std::stop_token& stop);

}  // namespace dspack::reshard
