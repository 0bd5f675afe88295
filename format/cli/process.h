// What a program takes from the process it runs in: environment, signals, terminal. Called from main only.
// Threads: call from the main thread before others start.
#pragma once

#include <stop_token>
#include <thread>

#include "format/source/repository.h"

namespace dspack::format {

/// What the help texts say of the environment.
inline constexpr char kEnvironmentHelp[] =
    "Environment: HF_ENDPOINT (default https://huggingface.co); HF_TOKEN, HF_TOKEN_PATH or \"hf auth login\" for a\n"
    "token, HF_HUB_DISABLE_IMPLICIT_TOKEN=1 for none; HF_HUB_CACHE, HF_HOME (snapshots of the Hub's local cache are\n"
    "read instead of the network); HF_HUB_OFFLINE=1 (no request to the Hub); HF_HUB_DOWNLOAD_TIMEOUT (seconds of\n"
    "silence, default 30); http_proxy, https_proxy, no_proxy; CURL_CA_BUNDLE or SSL_CERT_FILE for certificates of\n"
    "your own.";

/// As huggingface_hub reads them: HF_ENDPOINT; HF_TOKEN, else the token file (HF_TOKEN_PATH, else $HF_HOME/token, else
/// ~/.cache/huggingface/token), unless HF_HUB_DISABLE_IMPLICIT_TOKEN; HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, else
/// $HF_HOME/hub; HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE; HF_HUB_DOWNLOAD_TIMEOUT. As curl reads them: CURL_CA_BUNDLE,
/// else SSL_CERT_FILE. Where there is a token, core dumps are forbidden. Without HOME there is no token file and no
/// cache but where HF_TOKEN_PATH, HF_HUB_CACHE, HF_HOME or XDG_CACHE_HOME say.
[[nodiscard]] RemoteOptions remote_options_from_environment();

/// From here on the process leaves no core dump, and its memory cannot be read by other processes of the same user.
void forbid_core_dumps();

/// $XDG_CACHE_HOME, else $HOME/.cache; empty where neither names a folder from the root on: then there is none, and
/// what lies in the folder that the program happens to run in is not taken for it.
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

/// Standard input, output and error that were closed when the program was started are opened, on /dev/null and the
/// wrong way round: no file or connection gets their numbers, and using them fails as it would. First of all in main.
void occupy_standard_streams();

/// Memory that runs out where no error can be returned (nlohmann/json's destructor allocates, for one) ends the process
/// with one line and status 1, as it does elsewhere; what is on disk is as after a kill. `program`: its name.
void end_where_memory_runs_out(const char* program);

/// Blocks of a MiB and more go back to the system when they are freed. By default the C library keeps some of them for
/// each thread that has ever had one, beyond what the program says that it needs.
void return_large_blocks();

/// A peer that closes a connection while something is sent over it is then an error of that sending, not a signal
/// (SIGPIPE) that ends the process; a closed stdout likewise.
void ignore_broken_connections();

/// Exit status for an error: 130 when the user interrupted, else 1.
[[nodiscard]] int exit_status(const Error& error);

}  // namespace dspack::format
