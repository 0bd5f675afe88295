// What a program takes from the process it runs in: environment, signals, terminal. Called from main only.
// Threads: call from the main thread before others start.
#pragma once

#include <stop_token>
#include <thread>

#include "format/source/repository.h"

namespace dspack::format {

/// HF_ENDPOINT, HF_TOKEN, and the token file (HF_TOKEN_PATH, else $HF_HOME/token, else ~/.cache/huggingface/token),
/// as huggingface_hub reads them; CURL_CA_BUNDLE, else SSL_CERT_FILE, as curl reads them.
[[nodiscard]] RemoteOptions remote_options_from_environment();

/// $XDG_CACHE_HOME, else ~/.cache.
[[nodiscard]] Path user_cache_folder();

/// Turns Ctrl-C and SIGTERM into a stop request; the second one ends the process at once with status 130.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;
  [[nodiscard]] std::stop_token token() const { return source_.get_token(); }

 private:
  std::stop_source source_;
  std::jthread thread_;
};

/// A peer that closes a connection while something is sent over it is then an error of that sending, not a signal
/// (SIGPIPE) that ends the process; a closed stdout likewise.
void ignore_broken_connections();

/// Exit status for an error: 130 when the user interrupted, else 1.
[[nodiscard]] int exit_status(const Error& error);

}  // namespace dspack::format
