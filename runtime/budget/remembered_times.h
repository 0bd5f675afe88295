// Times that trials have measured on this machine, kept for later plans: a text file with a line for each, "KEY AT
// VALUE ...", which is replaced whole. If another process replaces it in between, its lines are lost and measured
// again. Threads: single-thread. Lifetime: borrows the file system. Errors: those of writing. A file that cannot be
// read, or a line that means nothing, is as if nothing were remembered: it is measured again.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/digest.h"
#include "format/file_system.h"
#include "runtime/budget/compute_trial.h"
#include "runtime/budget/link_trial.h"
#include "runtime/budget/read_trial.h"

namespace dspack::runtime {

class RememberedTimes {
 public:
  static constexpr size_t kMaxEntries = 100;       // the newest are kept
  static constexpr size_t kMaxBytes = 64U << 10U;  // size limit of the file
  static constexpr size_t kMaxValues = 8;          // numbers of a trial

  /// `now`: seconds since the epoch. An empty path: nothing is read or kept.
  RememberedTimes(format::FileSystem& files, format::Path file, int64_t now);

  /// Whatever changes the numbers is part of `key`: machine, device, model, program, shape of the trial.
  [[nodiscard]] std::optional<std::vector<double>> find(const format::Digest& key);
  /// Replaces what is known of the key.
  void put(const format::Digest& key, std::vector<double> values);
  /// Writes the file if anything was put.
  [[nodiscard]] Result<void> save();
  /// Seconds since the oldest trial that `find` has returned; nullopt: it has returned none.
  [[nodiscard]] std::optional<int64_t> age() const;

 private:
  struct Entry {
    format::Digest key;
    int64_t at = 0;
    std::vector<double> values;
  };
  void parse(std::string_view text);

  format::FileSystem& files_;
  format::Path file_;
  int64_t now_;
  std::vector<Entry> entries_;  // oldest first
  std::optional<int64_t> oldest_;
  bool is_changed_ = false;
};

// A trial's times as numbers, and back; nullopt: no trial gives such numbers.
[[nodiscard]] std::vector<double> to_values(const ComputeTimes& times);
[[nodiscard]] std::vector<double> to_values(const ReadTimes& times);
[[nodiscard]] std::vector<double> to_values(const LinkTimes& times);
template <class T>
[[nodiscard]] std::optional<T> from_values(std::span<const double> values);
template <>
std::optional<ComputeTimes> from_values(std::span<const double> values);
/// Read from a disk.
template <>
std::optional<ReadTimes> from_values(std::span<const double> values);
template <>
std::optional<LinkTimes> from_values(std::span<const double> values);

}  // namespace dspack::runtime
