#include "format/cli/output.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <system_error>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/file_system.h"

namespace dspack::format {
namespace {

/// The line on the terminal that is redrawn: the process has one, as it has one stderr. `columns`: of what it shows; 0:
/// nothing.
struct OpenLine {
  std::mutex mutex;  // guards what follows
  size_t columns = 0;
};
OpenLine open_line;

/// Under the mutex. A terminal that became narrower has broken the line into several.
std::string erasure() {
  constexpr char kToFirst[] = "\r";
  constexpr char kClearDown[] = "\033[J";
  if (open_line.columns == 0) return {};
  const size_t rows = (open_line.columns - 1) / std::max<size_t>(1, stderr_columns());
  open_line.columns = 0;
  return kToFirst + (rows > 0 ? fmt::format("\033[{}A", rows) : std::string()) + kClearDown;
}

void write(std::FILE* stream, std::string_view text) {
  const std::lock_guard lock(open_line.mutex);
  if (const std::string erase = erasure(); !erase.empty()) std::fwrite(erase.data(), 1, erase.size(), stderr);
  std::fwrite(text.data(), 1, text.size(), stream);
}

void draw(std::string_view line) {
  const std::lock_guard lock(open_line.mutex);
  const std::string shown = clipped(line, stderr_columns());
  const std::string text = erasure() + shown;
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  open_line.columns = shown.size();  // of bytes, which are no fewer
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
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  const bool plain = terminal == nullptr || std::string_view(terminal) == "dumb" || std::string_view(terminal).empty();
  if ((no_color != nullptr && *no_color != '\0') || plain || !stdout_is_terminal()) return;
  write(stdout, on ? "\x1b[2m" : "\x1b[22m");
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

std::atomic<bool> quiet{false};  // of the process, as stderr is

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
  if (stream) return {};  // it is opened when there is something to write
  const Path folder = Path(file).has_parent_path() ? Path(file).parent_path() : Path(".");
  TRY_ASSIGN(const auto parent, files.stat(folder));
  if (!parent || !parent->is_directory) {
    return Error{ErrorKind::not_found,
                 fmt::format("{}: the folder {} does not exist; create it first", file, folder.string())};
  }
  const auto made = create_temporary(files, file);
  if (!made) return made.error();
  return files.remove_tree(temporary_of(file));
}

Result<void> try_output_folder(const std::string& folder) {
  FileSystem& files = posix_file_system();
  Path there = folder;
  Path missing;  // the first folder that has to be made
  TRY_ASSIGN(auto info, files.stat(there));
  while (!info) {
    missing = there;
    there = there.has_parent_path() ? there.parent_path() : Path(".");
    TRY_ASSIGN(info, files.stat(there));
  }
  if (!info->is_directory) return Error{ErrorKind::conflict, there.string() + ": exists and is not a folder"};
  if (missing.empty()) return {};  // what is in it decides
  // A name of its own: parts of a repack may begin at the same moment.
  const Path tried =
      temporary_of(there / fmt::format("{}-{:08x}", missing.filename().string(), std::random_device()()));
  const auto made = files.open_write(tried, OpenMode::create);
  if (!made) return made.error().in(folder);
  return files.remove_tree(tried);
}

int finish_output(int status) {
  const bool is_flushed = std::fflush(stdout) == 0;
  const int reason = errno;
  if (is_flushed && std::ferror(stdout) == 0) return status;
  // An earlier write failed, and what it said is long overwritten.
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

void TerminalProgress::started(std::string_view what, uint64_t total_bytes, uint64_t total_files) {
  finished();
  const std::lock_guard lock(mutex_);
  meter_.start(what, total_bytes, total_files, std::chrono::steady_clock::now());
  if (!is_quiet()) ticker_ = std::jthread([this](const std::stop_token& stop) { tick(stop); });
}

void TerminalProgress::advanced(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  meter_.advance(bytes, std::chrono::steady_clock::now());
}

void TerminalProgress::file_done() {
  const std::lock_guard lock(mutex_);
  meter_.file_done(std::chrono::steady_clock::now());
}

void TerminalProgress::note(std::string_view text) {
  if (is_quiet() && !text.starts_with("warning: ")) return;
  print_error(text);
}

void TerminalProgress::finished() {
  if (!ticker_.joinable()) return;
  ticker_ = {};  // asks it to stop, and waits
  write(stderr, "");
  std::fflush(stderr);
}

void TerminalProgress::tick(const std::stop_token& stop) {
  constexpr auto kRedraw = std::chrono::milliseconds(250);
  constexpr double kQuietStart = 2;  // seconds; what is over by then needs no line
  constexpr double kLineSeconds = 60;
  double next_line = is_terminal_ ? kQuietStart : kLineSeconds;
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, stop, kRedraw, [&] { return stop.stop_requested(); })) {
    const auto now = std::chrono::steady_clock::now();
    if (meter_.seconds(now) < next_line) continue;
    if (is_terminal_) {
      draw(meter_.line(now));
    } else {
      write(stderr, meter_.line(now) + "\n");
      next_line += kLineSeconds;
    }
  }
}

}  // namespace dspack::format
