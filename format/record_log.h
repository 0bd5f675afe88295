// An append-only text of records that stays readable if cut anywhere: each line is 16 hexadecimal digits (the beginning
// of the SHA-256 of the rest), a space, canonical JSON. docs/format.md specifies it among the journals.
// Threads: reading is a pure function; a RecordLog is thread-safe. Lifetime: a RecordLog borrows the FileSystem.
// Errors: io, budget; damage is a result of reading (RecordScan).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "format/file_system.h"
#include "format/json.h"

namespace dspack::format {

/// The line of a record, with its check and line end.
[[nodiscard]] std::string record_line(const Json& record);

/// How far the text could be read. Anything after the last good record (half a line, zeros or garbage) was never
/// completed and is no damage; a broken line before a good record is.
struct RecordScan {
  uint64_t valid_bytes = 0;
  std::optional<std::string> damage;  // why the line at valid_bytes is damaged
};

/// Passes every record, an object each, to `take` in order; an error from `take` makes the record damaged.
[[nodiscard]] RecordScan scan_records(std::string_view text, const std::function<Result<void>(const Json&)>& take);

class RecordLog {
 public:
  /// Opens the log at `path` for appending after `valid_bytes`; anything beyond is dropped. Its name and its records
  /// are durable on return.
  [[nodiscard]] static Result<std::unique_ptr<RecordLog>> open(FileSystem& files, const Path& path,
                                                               uint64_t valid_bytes);
  /// Appends one or several lines of record_line; durable on return. After a failure the log ends where it did before.
  [[nodiscard]] Result<void> append(std::string_view lines);
  [[nodiscard]] uint64_t size_bytes() const;

 private:
  RecordLog(std::unique_ptr<WriteFile> file, uint64_t end) : file_(std::move(file)), end_(end) {}

  mutable std::mutex mutex_;
  std::unique_ptr<WriteFile> file_;  // guarded by mutex_
  uint64_t end_;                     // guarded by mutex_
};

}  // namespace dspack::format
