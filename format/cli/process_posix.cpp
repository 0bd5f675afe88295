#include <pthread.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX, not C
#include <unistd.h>

#include <cstdlib>

#include "format/cli/process.h"
#include "format/cli/terminal_progress.h"

namespace dspack::format {
namespace {

constexpr uint64_t kMaxTokenBytes = 4096;

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): main thread, before others start
  return value == nullptr ? "" : value;
}

std::string first_word(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_first_of(" \t\r\n", begin) - begin));
}

Path token_path() {
  if (const std::string path = variable("HF_TOKEN_PATH"); !path.empty()) return path;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return Path(home) / "token";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return Path(cache) / "huggingface/token";
  return Path(variable("HOME")) / ".cache/huggingface/token";
}

sigset_t interrupts() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

RemoteOptions remote_options_from_environment() {
  RemoteOptions options;
  if (const std::string endpoint = variable("HF_ENDPOINT"); !endpoint.empty()) options.hub_endpoint = endpoint;
  options.certificate_file = variable("CURL_CA_BUNDLE");
  if (options.certificate_file.empty()) options.certificate_file = variable("SSL_CERT_FILE");
  options.hub_token = first_word(variable("HF_TOKEN"));
  if (options.hub_token.empty()) {
    // No token file is the usual case and no error.
    if (const auto text = read_text(posix_file_system(), token_path(), kMaxTokenBytes))
      options.hub_token = first_word(*text);
  }
  return options;
}

Path user_cache_folder() {
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache;
  return Path(variable("HOME")) / ".cache";
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
  // To this thread only, which waits for the signal and takes it as a word to look at `quit`: nothing is terminated.
  pthread_kill(thread_.native_handle(), SIGTERM);  // NOLINT(bugprone-bad-signal-to-kill-thread,cert-pos44-c)
}

void ignore_broken_connections() {
  ::signal(SIGPIPE, SIG_IGN);
}

int exit_status(const Error& error) {
  return error.kind == ErrorKind::cancelled ? 130 : 1;
}

bool stderr_is_terminal() {
  return ::isatty(STDERR_FILENO) == 1;
}

}  // namespace dspack::format
