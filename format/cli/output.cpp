#include "format/cli/output.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <system_error>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/file_system.h"

namespace dspack::format {
namespace {

void write(std::FILE* stream, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stream);
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

int finish_output(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  print_error(fmt::format("cannot write to standard output: {}", std::generic_category().message(errno)));
  return status == 0 ? 1 : status;
}

namespace {

constexpr auto kRedraw = std::chrono::milliseconds(200);
constexpr auto kQuietStart = std::chrono::seconds(1);  // what is over by then needs no progress line

std::string human_seconds(double seconds) {
  const auto whole = static_cast<uint64_t>(std::lround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

/// The progress line, without colours or control codes.
struct ProgressState {
  std::string_view what;
  uint64_t bytes, total_bytes, files, total_files;
  double seconds;
};

std::string progress_line(const ProgressState& state) {
  const double rate = state.seconds > 0 ? static_cast<double>(state.bytes) / state.seconds : 0;
  std::string line = fmt::format("{}: {} of {}", state.what, human_bytes(state.bytes), human_bytes(state.total_bytes));
  if (state.total_files > 0) line += fmt::format(", {} of {} files", state.files, state.total_files);
  line += fmt::format(", {}/s", human_bytes(static_cast<uint64_t>(rate)));
  if (rate > 0 && state.bytes < state.total_bytes) {
    line += fmt::format(", {} left", human_seconds(static_cast<double>(state.total_bytes - state.bytes) / rate));
  }
  return line;
}

}  // namespace

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
  const std::lock_guard lock(mutex_);
  what_ = brief(what);
  total_bytes_ = total_bytes;
  total_files_ = total_files;
  bytes_ = files_ = 0;
  begin_ = drawn_ = Clock::now();
}

void TerminalProgress::advanced(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  const auto now = Clock::now();
  if (is_terminal_ && now - drawn_ >= kRedraw && now - begin_ >= kQuietStart) draw(now);
}

void TerminalProgress::file_done() {
  const std::lock_guard lock(mutex_);
  ++files_;
}

void TerminalProgress::note(std::string_view text) {
  if (is_quiet() && !text.starts_with("warning: ")) return;
  const std::lock_guard lock(mutex_);
  clear_line();
  std::fprintf(stream_, "%s\n", message_line(text).c_str());
}

void TerminalProgress::finished() {
  const std::lock_guard lock(mutex_);
  clear_line();
  std::fflush(stream_);
}

void TerminalProgress::draw(Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const std::string line = progress_line({what_, bytes_, total_bytes_, files_, total_files_, seconds});
  std::fprintf(stream_, "\r\033[K%s", line.c_str());
  std::fflush(stream_);
  drawn_ = now;
  line_open_ = true;
}

void TerminalProgress::clear_line() {
  if (line_open_) std::fprintf(stream_, "\r\033[K");
  line_open_ = false;
}

}  // namespace dspack::format
