// What every request of an HttpClient sets on its CURL handle, whatever it asks for.
// Threads: thread-safe (a pure function of the handle). Lifetime: `error_text` must outlive the transfer.
#pragma once

#include <curl/curl.h>

#include <array>

#include "format/source/http_client.h"

namespace dspack::format {

using CurlErrorText = std::array<char, CURL_ERROR_SIZE>;

inline constexpr long kConnectSeconds = 15;
inline constexpr long kIdleConnections = 2;  // kept by each handle: one to the Hub, one to where it redirects

inline void set_common(CURL* curl, const HttpClientOptions& options, CurlErrorText& error_text) {
  curl_easy_reset(curl);  // keeps connections, DNS and TLS sessions
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_MAXCONNECTS, kIdleConnections);
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_2TLS));
  if (!options.certificate_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, options.certificate_file.c_str());
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "dspack");
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error_text.data());
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
}

inline void set_bearer(CURL* curl, const std::string& token) {
  if (token.empty()) return;
  curl_easy_setopt(curl, CURLOPT_UNRESTRICTED_AUTH, 0L);  // not to another scheme, host or port that it redirects to
  curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
  curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, token.c_str());
}

/// Why a transfer failed, for a message, and whether another attempt can help.
struct CurlVerdict {
  std::string reason;
  bool may_pass = false;
  bool no_such_host = false;
};

[[nodiscard]] inline CurlVerdict verdict_of(CURLcode code, const CurlErrorText& error_text) {
  const std::string detail = error_text[0] != '\0' ? error_text.data() : curl_easy_strerror(code);
  const bool resolve = code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY;
  const bool connect = resolve || code == CURLE_COULDNT_CONNECT;
  const bool final = code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL ||
                     code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_PEER_FAILED_VERIFICATION ||
                     code == CURLE_SSL_CACERT_BADFILE || code == CURLE_OUT_OF_MEMORY;
  return {connect ? "cannot reach the server (" + detail + "); check the address and the connection"
                  : "transfer failed (" + detail + ")",
          !final, resolve};
}

}  // namespace dspack::format
