#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX, not C
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "format/cli/child_process.h"

namespace dspack::format {
namespace {

constexpr int kCannotRun = 127;  // as of a shell

/// The child's side, between fork and exec: only functions that are safe after a fork with threads.
[[noreturn]] void become(char* const* arguments, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(kCannotRun);  // it was killed before it could be watched
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);  // InterruptWatch blocks signals, and masks are inherited
  ::signal(SIGPIPE, SIG_DFL);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  ::execvp(arguments[0], arguments);
  ::_exit(kCannotRun);
}

}  // namespace

bool has_program(const std::string& name) {
  const char* const path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe): nothing sets variables
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = std::filesystem::path(folder) / name;
    if (::access(file.c_str(), X_OK) == 0 && !std::filesystem::is_directory(file)) return true;
  }
  return false;
}

Result<int> run_child(std::span<const std::string> command, const std::stop_token& stop) {
  std::vector<std::string> words(command.begin(), command.end());
  std::vector<char*> arguments;
  for (std::string& word : words)
    arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) become(arguments.data(), parent);
  if (child < 0) return Error{ErrorKind::io, fmt::format("{}: cannot be started: {}", words[0], std::strerror(errno))};
  {
    const std::stop_callback interrupt(stop, [child] { ::kill(child, SIGINT); });
    // Its entry stays until it is reaped below, so that the signal reaches no other process with its number.
    siginfo_t ended = {};
    while (::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
  if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
  return WEXITSTATUS(status);
}

}  // namespace dspack::format
