#include "format/cli/output.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <system_error>

#include <fmt/format.h>

#include "format/base/display_width.h"
#include "format/base/foreign_text.h"
#include "format/cli/progress_meter.h"
#include "format/file_system.h"

namespace dspack::format {
namespace {

constexpr std::string_view kDim = "\x1b[2m", kNotDim = "\x1b[22m";
constexpr std::string_view kClearDown = "\x1b[J";
// Octal, since a D or a digit after \x1b would be parsed as part of it.
constexpr std::string_view kMakeRoom = "\033D\033[A", kSaveAndGoDown = "\0337\033[B", kRestore = "\0338";

// The environment never changes, so any thread may read it.
bool has_capabilities() {
  const char* const terminal = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe)
  return terminal != nullptr && *terminal != '\0' && std::string_view(terminal) != "dumb";
}

bool can_dim() {
  const char* const no_color = std::getenv("NO_COLOR");  // NOLINT(concurrency-mt-unsafe)
  return (no_color == nullptr || *no_color == '\0') && has_capabilities();
}

/// The terminal, as far as this process has written to it; one per process, like stdout and stderr. The cursor's column
/// is tracked from what is written here; code that writes around it (a line editor) ends at the beginning of a line.
struct Screen {
  std::mutex mutex;            // guards the following members
  std::string status;          // as drawn; empty: none
  Shade shade = Shade::plain;  // look of the status line
  size_t column = 0;    // the cursor's, if stdout and stderr share the terminal; at the width the next character wraps
  bool is_dim = false;  // set by dim_data
};
Screen screen;

/// Requires the mutex, as do the following functions. The cursor is at the beginning of the status line, or above it.
std::string erasure() {
  if (screen.status.empty()) return {};
  screen.status.clear();
  return std::string(screen.column == 0 ? "\r" : "").append(kClearDown);
}

/// If the cursor's line has text, draws below it and returns the cursor to its place: at the bottom of the screen a
/// line feed (IND, which keeps the column) makes room first.
std::string drawing(std::string_view status) {
  if (status.empty()) return {};
  screen.status = status;
  const bool dims = screen.shade == Shade::dimmed && can_dim();
  const std::string shown = fmt::format("{}{}{}", dims ? kDim : "", status, dims && !screen.is_dim ? kNotDim : "");
  if (screen.column == 0) return fmt::format("\r{}\r", shown);
  return fmt::format("{}{}\r{}{}", kMakeRoom, kSaveAndGoDown, shown, kRestore);
}

void follow_cursor(std::string_view text) {
  constexpr size_t kTab = 8;
  const size_t width = std::max<size_t>(1, stderr_columns());
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with("\x1b[")) {  // one of our own sequences, which end in a letter
      at += std::min(rest.find_first_not_of("\x1b[0123456789"), rest.size() - 1) + 1;
      continue;
    }
    const size_t bytes = first_utf8_unit(rest).bytes;
    at += bytes;
    if (rest[0] == '\n' || rest[0] == '\r') {
      screen.column = 0;
    } else if (rest[0] == '\t') {
      screen.column = std::min(width - 1, (screen.column / kTab + 1) * kTab);
    } else {
      const size_t columns = columns_of(rest.substr(0, bytes));
      screen.column = screen.column + columns > width ? columns : screen.column + columns;
    }
  }
}

void put(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
}

/// Writes erasure, text and redrawn status line to a shared terminal in one piece, so that it does not flicker.
void write(std::FILE* stream, std::string_view text) {
  const std::lock_guard lock(screen.mutex);
  const bool shares = streams_share_terminal();
  if (stream == stdout && shares && !screen.status.empty()) {
    const std::string status = screen.status;
    const std::string erase = erasure();
    follow_cursor(text);
    const std::string draw = screen.column < stderr_columns() ? drawing(status) : std::string();
    put(stdout, erase + std::string(text) + draw);
    std::fflush(stdout);
    return;
  }
  const bool is_elsewhere = stream == stdout && !shares;
  if (!is_elsewhere) put(stderr, erasure());
  put(stream, text);
  if (shares) follow_cursor(text);
}

}  // namespace

void print_out(std::string_view text) {
  write(stdout, without_passwords(printable_text(text)));
}

void print_line(std::string_view text) {
  write(stdout, message_line(text) + "\n");
}

void print_json(std::string_view json) {
  write(stdout, printable_text(json));
}

void print_data(std::string_view data) {
  write(stdout, stdout_is_terminal() ? printable_text(data) : std::string(data));
}

void print_error(std::string_view line) {
  write(stderr, message_line(line) + "\n");
}

void dim_data(bool on) {
  if (!can_dim() || !stdout_is_terminal()) return;
  {
    const std::lock_guard lock(screen.mutex);
    screen.is_dim = on;
  }
  write(stdout, on ? kDim : kNotDim);
}

bool can_redraw() {
  return stderr_is_terminal() && has_capabilities();
}

void draw_status(std::string_view line, Shade shade) {
  const std::lock_guard lock(screen.mutex);
  const bool shares = streams_share_terminal();
  if (shares) std::fflush(stdout);  // keeps the order of the output
  const size_t columns = stderr_columns();
  std::string text = erasure();
  screen.shade = shade;
  // Restoring the cursor would lose a pending wrap.
  if (!shares || screen.column < columns) text += drawing(clipped(message_line(line), columns));
  put(stderr, text);
  std::fflush(stderr);
}

void clear_status() {
  draw_status({}, Shade::plain);
}

void begin_redraw(int rows_up) {
  write(stdout, rows_up > 0 ? fmt::format("\r\x1b[{}A\x1b[J", rows_up) : "\r\x1b[J");
}

bool ask_yes(std::string_view question) {
  write(stderr, message_line(question) + " [y/N] ");
  std::array<char, 16> answer{};
  if (std::fgets(answer.data(), answer.size(), stdin) == nullptr) return false;
  const std::string_view word(answer.data());
  return word == "y\n" || word == "Y\n" || word == "yes\n" || word == "Yes\n";
}

void print_help(std::string_view text) {
  write(stderr, printable_text(text) + "\n");
}

namespace {

std::atomic<bool> quiet{false};  // one per process, as stderr is

}  // namespace

void be_quiet() {
  quiet = true;
}

bool is_quiet() {
  return quiet;
}

Result<void> try_output(const std::string& file) {
  if (file.empty()) return {};
  FileSystem& files = posix_file_system();
  TRY_ASSIGN(const auto there, files.stat(file));
  if (there && there->is_directory) return Error{ErrorKind::conflict, file + ": is a folder; name a file in it"};
  TRY_ASSIGN(const bool stream, is_stream(files, file));
  if (stream) return {};  // opened when there is something to write
  const Path folder = Path(file).has_parent_path() ? Path(file).parent_path() : Path(".");
  TRY_ASSIGN(const auto parent, files.stat(folder));
  if (!parent || !parent->is_directory) {
    return Error{ErrorKind::not_found,
                 fmt::format("{}: the folder {} does not exist; create it first", file, folder.string())};
  }
  const auto made = create_temporary(files, file);
  if (!made) return made.error();
  return files.remove_file(temporary_of(file));
}

Result<void> try_output_folder(const std::string& folder) {
  FileSystem& files = posix_file_system();
  Path there = folder;
  Path missing;  // the first folder that has to be created
  TRY_ASSIGN(auto info, files.stat(there));
  while (!info) {
    missing = there;
    there = there.has_parent_path() ? there.parent_path() : Path(".");
    TRY_ASSIGN(info, files.stat(there));
  }
  if (!info->is_directory) return Error{ErrorKind::conflict, there.string() + ": exists and is not a folder"};
  if (missing.empty()) return {};  // its contents decide whether it can be used
  // A unique name: parts of a repack may start at the same moment.
  const Path tried =
      temporary_of(there / fmt::format("{}-{:08x}", missing.filename().string(), std::random_device()()));
  const auto made = files.open_write(tried, OpenMode::create);
  if (!made) return made.error().in(folder);
  return files.remove_file(tried);
}

int finish_output(int status) {
  const bool is_flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if (is_flushed && std::ferror(stdout) == 0) return status;
  // An earlier write failed; its errno has been overwritten since.
  print_error(is_flushed ? "cannot write to standard output"
                         : fmt::format("cannot write to standard output: {}", std::generic_category().message(reason)));
  return status == 0 ? 1 : status;
}

std::string human_bytes(uint64_t bytes) {
  static constexpr std::array<std::string_view, 5> kUnits{"kB", "MB", "GB", "TB", "PB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  while (value >= 999.95 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace dspack::format
