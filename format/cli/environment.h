// Settings of remote places and folders, read from environment variables.
// Threads: call from the main thread before others start.
#pragma once

#include "format/source/repository.h"

namespace dspack::format {

/// The part of the help texts about environment variables.
inline constexpr char kEnvironmentHelp[] =
    "Environment: HF_ENDPOINT (default https://huggingface.co); HF_TOKEN, HF_TOKEN_PATH or \"hf auth login\" for a\n"
    "token, HF_HUB_DISABLE_IMPLICIT_TOKEN=1 for none; HF_HUB_CACHE, HF_HOME (snapshots of the Hub's local cache are\n"
    "read instead of the network); HF_HUB_OFFLINE=1 (no request to the Hub); HF_HUB_DOWNLOAD_TIMEOUT (seconds of\n"
    "silence, default 30); http_proxy, https_proxy, no_proxy; CURL_CA_BUNDLE or SSL_CERT_FILE for certificates of\n"
    "your own.";

/// As huggingface_hub reads them: HF_ENDPOINT; HF_TOKEN, else the token file (HF_TOKEN_PATH, else $HF_HOME/token, else
/// ~/.cache/huggingface/token), unless HF_HUB_DISABLE_IMPLICIT_TOKEN; HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, else
/// $HF_HOME/hub; HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE; HF_HUB_DOWNLOAD_TIMEOUT. As curl reads them: CURL_CA_BUNDLE,
/// else SSL_CERT_FILE. Forbids core dumps if there is a token. Without HOME, a token file or cache is used only if
/// HF_TOKEN_PATH, HF_HUB_CACHE, HF_HOME or XDG_CACHE_HOME names it.
[[nodiscard]] RemoteOptions remote_options_from_environment();

/// $XDG_CACHE_HOME, else $HOME/.cache; empty if neither is an absolute path: a folder relative to the current one is
/// never taken for the cache.
[[nodiscard]] Path user_cache_folder();

/// $XDG_STATE_HOME, else $HOME/.local/state; empty likewise.
[[nodiscard]] Path user_state_folder();

}  // namespace dspack::format
