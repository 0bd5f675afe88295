#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX, not C
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "format/base/result.h"
#include "format/cli/output.h"
#include "format/cli/process.h"

namespace dspack::format {
namespace {

std::string no_memory_line;  // set once, before any other thread runs

void write_error(const char* text) {
  (void)!::write(STDERR_FILENO, text, std::strlen(text));
}

/// Whether memory has run out; the library may then have had none for the exception itself.
bool is_out_of_memory() {
  constexpr size_t kSome = 16UL << 20;  // more than a thread's stack
  void* const some = std::malloc(kSome);
  std::free(some);
  return some == nullptr;
}

[[noreturn]] void terminated() {
  bool no_memory = false;
  try {
    const auto reason = std::current_exception();
    if (reason) std::rethrow_exception(reason);
    no_memory = is_out_of_memory();
  } catch (const std::bad_alloc&) {
    no_memory = true;
  } catch (const std::exception& mistake) {
    write_error(mistake.what());
    write_error("\n");
  } catch (...) {  // the core dump shows the exception
  }
  if (!no_memory) std::abort();
  static std::atomic_flag is_said = ATOMIC_FLAG_INIT;
  while (is_said.test_and_set())
    ::pause();  // another thread ends the process
  write_error(no_memory_line.c_str());
  ::_exit(1);
}

sigset_t interrupts() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

// From here to the end of the namespace: runs in the signal handler of mapped files, so it allocates no memory and
// takes no lock.

std::array<char, 256> first_words;  // "dsrun: ", set once, before any other thread runs

void say(const char* text, size_t length) {
  (void)!::write(STDERR_FILENO, text, length);
}

void say(const char* text) {
  say(text, std::strlen(text));
}

/// A hexadecimal number at the start of [from, end); moves `from` past it.
uintptr_t take_hex(const char*& from, const char* end) {
  uintptr_t value = 0;
  for (; from != end; ++from) {
    const char c = *from;
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<uintptr_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value * 16 + static_cast<uintptr_t>(c - 'a' + 10);
    } else {
      break;
    }
  }
  return value;
}

/// If this line of /proc/self/maps, "1000-2000 rw-p 00000000 fe:00 123   /name", covers `address`, writes the file's
/// name.
bool write_name(const char* line, const char* end, uintptr_t address) {
  const char* at = line;
  const uintptr_t first = take_hex(at, end);
  if (at == end || *at != '-') return false;
  ++at;
  const uintptr_t last = take_hex(at, end);
  if (address < first || address >= last) return false;
  const char* const name = std::find(at, end, '/');
  if (name == end) return false;
  for (const char* c = name; c != end; ++c)  // a name must not control the terminal
    say(*c >= ' ' && *c < 0x7f ? c : "?", 1);
  return true;
}

/// Writes the name of the file that is mapped at `address`; false if the system does not report it.
bool write_file_at(uintptr_t address) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return false;
  static std::array<char, 8192> text;  // longer than any line
  size_t held = 0;
  for (;;) {
    const ssize_t got = ::read(maps, text.data() + held, text.size() - held);
    if (got <= 0) return false;
    held += static_cast<size_t>(got);
    char* line = text.data();
    char* const end = line + held;
    for (char* stop = std::find(line, end, '\n'); stop != end; stop = std::find(line, end, '\n')) {
      if (write_name(line, stop, address)) return true;
      line = stop + 1;
    }
    held = static_cast<size_t>(end - line);
    std::memmove(text.data(), line, held);
  }
}

void failed(int /*signal*/, siginfo_t* info, void* /*context*/) {
  static std::atomic_flag is_said = ATOMIC_FLAG_INIT;
  while (is_said.test_and_set())
    ::pause();  // another thread ends the process
  say(first_words.data());
  if (!write_file_at(reinterpret_cast<uintptr_t>(info->si_addr))) say("a file of the model");
  say(": the file was cut short while it was in use, or its disk has failed; restore the file and run again "
      "(--dev io=direct copies weights into memory)\n");
  ::_exit(1);
}

}  // namespace

void forbid_core_dumps() {
  // The kernel then writes no core, passes none to a program that collects them (which a limit on their size does not
  // prevent), and lets no other process of the user read this one's memory. It cannot fail with these arguments.
  (void)prctl(PR_SET_DUMPABLE, 0L, 0L, 0L, 0L);
}

InterruptWatch::InterruptWatch() {
  const sigset_t set = interrupts();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);  // inherited by every thread made later
  thread_ = std::jthread([this](const std::stop_token& quit) {
    const sigset_t wanted = interrupts();
    for (;;) {
      int signal = 0;
      if (sigwait(&wanted, &signal) != 0) continue;
      if (quit.stop_requested()) return;
      if (source_.stop_requested()) _exit(130);
      source_.request_stop();
    }
  });
}

InterruptWatch::~InterruptWatch() {
  thread_.request_stop();
  // Only to this thread, which waits for the signal and then checks `quit`: nothing is terminated.
  pthread_kill(thread_.native_handle(), SIGTERM);  // NOLINT(bugprone-bad-signal-to-kill-thread,cert-pos44-c)
}

void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // Gets the lowest free number, which is this one. Without /dev/null nothing can be done.
    (void)::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void end_where_memory_runs_out(const char* program) {
  no_memory_line = std::string(program) + ": " + kOutOfMemory + "\n";
  std::set_terminate(&terminated);
}

void end_where_a_mapped_file_fails(const char* program) {
  const std::string words = std::string(program).substr(0, first_words.size() - 3) + ": ";
  std::ranges::copy(words, first_words.begin());
  struct sigaction action {};
  action.sa_sigaction = failed;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  (void)::sigaction(SIGBUS, &action, nullptr);
}

void return_large_blocks() {
  (void)::mallopt(M_MMAP_THRESHOLD, 1 << 20);  // once set, the library no longer raises it by itself
}

void ignore_broken_connections() {
  ::signal(SIGPIPE, SIG_IGN);
}

bool stderr_is_terminal() {
  return !is_quiet() && ::isatty(STDERR_FILENO) == 1;
}

size_t stderr_columns() {
  constexpr size_t kUsual = 80;
  ::winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kUsual;
}

bool can_ask() {
  return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
}

bool stdout_is_terminal() {
  return ::isatty(STDOUT_FILENO) == 1;
}

bool streams_share_terminal() {
  struct stat out {};
  struct stat error {};
  return ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &error) == 0 && out.st_rdev == error.st_rdev &&
         S_ISCHR(out.st_mode) && S_ISCHR(error.st_mode) && stdout_is_terminal();
}

}  // namespace dspack::format
