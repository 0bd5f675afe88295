// Counts the repetitions of one case of the fault suite and prints its row of the table: "FAULTS: case | n | failures".
// scripts/faults collects these rows. Threads: not thread-safe.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace dspack::test {

/// The long form of the suite, run on demand: DSPACK_TESTS=long.
[[nodiscard]] inline bool long_faults() {
  const char* form = std::getenv("DSPACK_TESTS");
  return form != nullptr && std::string_view(form) == "long";
}

class FaultTally {
 public:
  explicit FaultTally(std::string name) : name_(std::move(name)) {}
  ~FaultTally() {
    std::printf("FAULTS: %s | %llu | %llu\n", name_.c_str(), static_cast<unsigned long long>(repetitions_),
                static_cast<unsigned long long>(failures_));
    std::fflush(stdout);
  }
  FaultTally(const FaultTally&) = delete;
  FaultTally& operator=(const FaultTally&) = delete;

  /// One repetition; `failure` is empty if it went well. `what` tells how to find it again.
  void add(const std::string& what, const std::string& failure) {
    ++repetitions_;
    if (failure.empty()) return;
    ++failures_;
    if (failures_ <= kShown) FAIL_CHECK(what, ": ", failure);
  }
  [[nodiscard]] uint64_t failures() const { return failures_; }
  [[nodiscard]] uint64_t repetitions() const { return repetitions_; }

 private:
  static constexpr uint64_t kShown = 5;  // the rest of a broken case says the same

  std::string name_;
  uint64_t repetitions_ = 0;
  uint64_t failures_ = 0;
};

}  // namespace dspack::test
