// What was typed in chats, kept for later ones: a file of one entry a line, in which a line feed is \n and a backslash
// \\. Several processes may add to it at once: each adds under a lock and replaces the file whole.
// Threads: single-thread. Lifetime: borrows the file system. Errors: those of the file system. The file is read by its
// owner alone; what is in it counts as text from outside.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "format/file_system.h"

namespace dspack::runtime {

/// The entries of a history file, oldest first; what could steer a terminal is left out.
[[nodiscard]] std::vector<std::string> parse_history(std::string_view text);
[[nodiscard]] std::string history_text(const std::vector<std::string>& entries);

class InputHistory {
 public:
  static constexpr size_t kMostEntries = 1000;
  static constexpr size_t kMostBytes = 1U << 20U;        // of the file
  static constexpr size_t kMostEntryBytes = 16U << 10U;  // a longer one is not kept

  /// An empty path: nothing is read or kept.
  InputHistory(format::FileSystem& files, format::Path file) : files_(files), file_(std::move(file)) {}
  [[nodiscard]] Result<std::vector<std::string>> read() const;
  /// An entry that cannot be added because another process is writing comes with the next one.
  [[nodiscard]] Result<void> add(const std::string& entry);

 private:
  format::FileSystem& files_;
  format::Path file_;
  std::vector<std::string> waiting_;
};

/// $XDG_STATE_HOME/dspack/history, else $HOME/.local/state/dspack/history; empty where neither is a folder from the
/// root on.
[[nodiscard]] format::Path user_history_file();

}  // namespace dspack::runtime
