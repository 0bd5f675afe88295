// Source: huggingface_hub, constants.py, and docs/hub.md here.
#include "format/cli/environment.h"

#include <cstdlib>

#include <fmt/format.h>

#include "format/base/size.h"
#include "format/cli/process.h"
#include "format/http/headers.h"

namespace dspack::format {
namespace {

constexpr uint64_t kMaxTokenBytes = 4096;
constexpr uint64_t kMaxTimeoutSeconds = 86400;

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): main thread, before others start
  return value == nullptr ? "" : value;
}

/// The value of the first variable that is set and not empty.
std::string first_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string value = variable(name); !value.empty()) return value;
  }
  return "";
}

bool is_on(const char* name) {
  const std::string value = variable(name);
  for (const std::string_view on : {"1", "ON", "YES", "TRUE"}) {
    if (equal_ignoring_case(value, on)) return true;
  }
  return false;
}

std::string first_word(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_first_of(" \t\r\n", begin) - begin));
}

Path hub_home() {
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home;
  const Path cache = user_cache_folder();
  return cache.empty() ? Path() : cache / "huggingface";
}

std::string hub_token() {
  if (is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return "";
  if (std::string token = first_word(variable("HF_TOKEN")); !token.empty()) return token;
  const std::string path = variable("HF_TOKEN_PATH");
  // A missing token file is the usual case, not an error.
  const Path home = hub_home();
  if (path.empty() && home.empty()) return "";
  const auto text = read_text(posix_file_system(), path.empty() ? home / "token" : Path(path), kMaxTokenBytes);
  return text ? first_word(*text) : "";
}

}  // namespace

RemoteOptions remote_options_from_environment() {
  RemoteOptions options;
  if (const std::string endpoint = variable("HF_ENDPOINT"); !endpoint.empty()) options.hub_endpoint = endpoint;
  const std::string cache = first_of({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  const Path home = hub_home();
  if (!cache.empty() || !home.empty()) options.hub_cache = cache.empty() ? home / "hub" : Path(cache);
  options.hub_offline = is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE");
  options.certificate_file = first_of({"CURL_CA_BUNDLE", "SSL_CERT_FILE"});
  const auto timeout = parse_decimal(variable("HF_HUB_DOWNLOAD_TIMEOUT"));
  if (timeout && *timeout > 0 && *timeout <= kMaxTimeoutSeconds)
    options.stall_seconds = static_cast<unsigned>(*timeout);
  options.hub_token = hub_token();
  if (!options.hub_token.empty() && !is_private_line(options.hub_endpoint) && !is_on("DSPACK_TOKEN_OVER_HTTP")) {
    options.hub_token.clear();
    options.hub_token_note = fmt::format(
        "your token is not sent to {}, where anybody on the way could read it: set HF_ENDPOINT to its https:// "
        "address, "
        "or DSPACK_TOKEN_OVER_HTTP=1 on a network that you trust",
        without_password(options.hub_endpoint));
  }
  // libcurl, TLS and the environment keep copies of the token that cannot be wiped.
  if (!options.hub_token.empty()) forbid_core_dumps();
  return options;
}

Path user_cache_folder() {
  if (Path cache = variable("XDG_CACHE_HOME"); cache.is_absolute()) return cache;
  const Path home = variable("HOME");
  return home.is_absolute() ? home / ".cache" : Path();
}

Path user_state_folder() {
  if (Path state = variable("XDG_STATE_HOME"); state.is_absolute()) return state;
  const Path home = variable("HOME");
  return home.is_absolute() ? home / ".local" / "state" : Path();
}

}  // namespace dspack::format
