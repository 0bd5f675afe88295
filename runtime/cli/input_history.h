// Lines typed in chats, kept for later chats: a file with one entry per line, in which a line feed is \n and a
// backslash \\. Several processes may add to it at once: each adds under a lock and replaces the file whole.
// Threads: single-thread. Lifetime: borrows the file system. Errors: those of the file system. The file is readable
// only by its owner; its content is still treated as untrusted.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "format/file_system.h"

namespace dspack::runtime {

/// The entries of a history file, oldest first; entries with control characters are skipped.
[[nodiscard]] std::vector<std::string> parse_history(std::string_view text);
[[nodiscard]] std::string history_text(const std::vector<std::string>& entries);

class InputHistory {
 public:
  static constexpr size_t kMaxEntries = 1000;
  static constexpr size_t kMaxBytes = 1U << 20U;        // size limit of the file
  static constexpr size_t kMaxEntryBytes = 16U << 10U;  // longer entries are not kept

  /// An empty path: nothing is read or kept.
  InputHistory(format::FileSystem& files, format::Path file) : files_(files), file_(std::move(file)) {}
  [[nodiscard]] Result<std::vector<std::string>> read() const;
  /// If another process holds the lock, the entry is added with the next one.
  [[nodiscard]] Result<void> add(const std::string& entry);

 private:
  format::FileSystem& files_;
  format::Path file_;
  std::vector<std::string> waiting_;
};

/// dspack/history in format::user_state_folder(); empty if there is none.
[[nodiscard]] format::Path user_history_file();

}  // namespace dspack::runtime
