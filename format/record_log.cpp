#include "format/record_log.h"

#include "format/digest.h"
#include "format/json.h"

namespace dspack::format {
namespace {

// Enough to detect a torn line.
constexpr size_t kCheckDigits = 16;

std::string check_of(std::string_view json) {
  return to_hex(sha256(json)).substr(0, kCheckDigits);
}

std::optional<Json> parse_line(std::string_view line) {
  if (line.size() < kCheckDigits + 2 || line[kCheckDigits] != ' ') return std::nullopt;
  const std::string_view text = line.substr(kCheckDigits + 1);
  if (check_of(text) != line.substr(0, kCheckDigits)) return std::nullopt;
  auto json = parse_json(text, kRecordDocument);
  if (!json || !json->is_object()) return std::nullopt;
  return std::move(json).value();
}

/// Whether a record follows a broken line: then the line is no tail that a loss of power has left.
bool record_follows(std::string_view text) {
  for (size_t newline = text.find('\n'); newline != std::string_view::npos; newline = text.find('\n')) {
    if (parse_line(text.substr(0, newline))) return true;
    text.remove_prefix(newline + 1);
  }
  return false;
}

}  // namespace

std::string record_line(const Json& record) {
  const std::string text = canonical_json(record);
  return check_of(text) + " " + text + "\n";
}

RecordScan scan_records(std::string_view text, const std::function<Result<void>(const Json&)>& take) {
  RecordScan scan;
  while (scan.valid_bytes < text.size()) {
    const std::string_view rest = text.substr(scan.valid_bytes);
    const size_t newline = rest.find('\n');
    if (newline == std::string_view::npos) break;  // torn by a kill: the record was never completed
    const std::optional<Json> json = parse_line(rest.substr(0, newline));
    if (!json && !record_follows(rest.substr(newline + 1))) break;  // torn by a loss of power
    if (!json) {
      scan.damage = "a record's check does not fit";
      break;
    }
    if (const auto taken = take(*json); !taken) {
      scan.damage = taken.error().message;
      break;
    }
    scan.valid_bytes += newline + 1;
  }
  return scan;
}

Result<std::unique_ptr<RecordLog>> RecordLog::open(FileSystem& files, const Path& path, uint64_t valid_bytes) {
  TRY_ASSIGN(auto file, files.open_write(path, OpenMode::keep));
  TRY(file->resize(valid_bytes));  // drops a torn tail
  // Also for an existing log, whose run may have been killed before it had synced: what is made because of its records
  // must not outlive them.
  TRY(file->sync());
  TRY(files.sync_folder(path.parent_path()));
  return std::unique_ptr<RecordLog>(new RecordLog(std::move(file), valid_bytes));
}

Result<void> RecordLog::append(std::string_view lines) {
  const std::lock_guard lock(mutex_);
  TRY(file_->write(end_, as_bytes(lines)));
  TRY(file_->sync());
  end_ += lines.size();
  return {};
}

uint64_t RecordLog::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

}  // namespace dspack::format
