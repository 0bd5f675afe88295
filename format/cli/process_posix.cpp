#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX, not C
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
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
