#include "runtime/cli/input_history.h"

#include <algorithm>

#include "format/base/foreign_text.h"
#include "format/cli/environment.h"

namespace dspack::runtime {

namespace {

std::string unescaped(std::string_view line) {
  std::string entry;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\' || i + 1 == line.size()) {
      entry += line[i];
    } else {
      entry += line[++i] == 'n' ? '\n' : line[i];
    }
  }
  return entry;
}

std::string escaped(std::string_view entry) {
  std::string line;
  for (const char c : entry) {
    if (c == '\n' || c == '\\') line += '\\';
    line += c == '\n' ? 'n' : c;
  }
  return line;
}

}  // namespace

std::vector<std::string> parse_history(std::string_view text) {
  std::vector<std::string> entries;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    std::string entry = unescaped(line);
    if (entry.empty() || entry.size() > InputHistory::kMaxEntryBytes || printable_text(entry) != entry) continue;
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::string history_text(const std::vector<std::string>& entries) {
  size_t bytes = 0;
  size_t first = entries.size();
  std::vector<std::string> lines;
  while (first > 0 && lines.size() < InputHistory::kMaxEntries) {
    std::string line = escaped(entries[--first]) + "\n";
    bytes += line.size();
    if (bytes > InputHistory::kMaxBytes) break;
    lines.push_back(std::move(line));
  }
  std::ranges::reverse(lines);
  std::string text;
  for (const std::string& line : lines)
    text += line;
  return text;
}

Result<std::vector<std::string>> InputHistory::read() const {
  if (file_.empty()) return std::vector<std::string>();
  const auto text = format::read_text(files_, file_, kMaxBytes);
  if (!text && text.error().kind == ErrorKind::not_found) return std::vector<std::string>();
  if (!text) return text.error();
  return parse_history(*text);
}

Result<void> InputHistory::add(const std::string& entry) {
  if (file_.empty() || entry.empty() || entry.size() > kMaxEntryBytes) return {};
  waiting_.push_back(entry);
  if (waiting_.size() > kMaxEntries) waiting_.erase(waiting_.begin());
  TRY(files_.make_private_folders(file_.parent_path()));
  const auto lock = files_.lock(format::Path(file_) += ".lock", format::LockKind::exclusive);
  if (!lock && lock.error().kind == ErrorKind::conflict) return {};
  if (!lock) return lock.error();
  TRY_ASSIGN(std::vector<std::string> entries, read());
  for (const std::string& added : waiting_) {
    if (entries.empty() || entries.back() != added) entries.push_back(added);
  }
  const std::string text = history_text(entries);
  // Typed text is private.
  TRY_ASSIGN(const auto file, format::create_temporary(files_, file_, format::Access::owner));
  TRY(file->write(0, format::as_bytes(text)));
  TRY(files_.rename(format::temporary_of(file_), file_));
  waiting_.clear();
  return {};
}

format::Path user_history_file() {
  const format::Path state = format::user_state_folder();
  return state.empty() ? state : state / "dspack" / "history";
}

}  // namespace dspack::runtime
