#include "runtime/serve/access.h"

#include "runtime/serve/host_address.h"

namespace dspack::runtime {
namespace {

/// Constant-time comparison.
bool are_equal(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0U : 1U;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? '\0' : b[i % b.size()]);
  return difference == 0;
}

/// Whether a browser reports that a page of another origin caused the request, even without an Origin: images, scripts,
/// frames. Following a link to the page does not count.
bool is_from_elsewhere(const HttpRequest& request) {
  const std::string_view site = request.header("sec-fetch-site");
  if (site != "cross-site" && site != "same-site") return false;
  return request.path != "/" || request.header("sec-fetch-dest") != "document";
}

bool is_known_host(std::string_view host, const ApiOptions& options) {
  const auto named = host_of(host);
  if (named && (means_this_machine(*named) || is_same_host(*named, options.host))) return true;
  // With a key, a foreign page that reached this server by DNS rebinding can do nothing without the key.
  return !options.api_key.empty();
}

}  // namespace

std::optional<ApiError> access_refusal(const HttpRequest& request, const ApiOptions& options) {
  if (!is_known_host(request.header("host"), options)) {
    return ApiError{.status = 403,
                    .type = "permission_error",
                    .message = "this server answers only to the names localhost and 127.0.0.1"};
  }
  // Browsers send the origin of the page: only this server's own pages may send requests.
  if (const std::string_view origin = request.header("origin"); !origin.empty()) {
    const size_t scheme = origin.find("://");
    if (options.allow_origin == "*" || origin == options.allow_origin) {
      // allowed by name
    } else if (scheme == std::string_view::npos || origin.substr(scheme + 3) != request.header("host")) {
      return ApiError{
          .status = 403, .type = "permission_error", .message = "pages of other servers may not ask this one"};
    }
  } else if (is_from_elsewhere(request) && options.allow_origin != "*") {
    return ApiError{
        .status = 403, .type = "permission_error", .message = "pages of other servers may not ask this one"};
  }
  if (options.api_key.empty() || is_health(request.path) || request.path == "/") return std::nullopt;
  std::string_view key = request.header("authorization");
  if (key.starts_with("Bearer ")) key.remove_prefix(7);
  if (key.empty()) key = request.header("x-api-key");
  if (are_equal(key, options.api_key)) return std::nullopt;
  return ApiError{.status = 401, .type = "authentication_error", .message = "the API key is missing or wrong"};
}

HttpReply::Headers cross_origin_headers(const std::string& origin) {
  if (origin.empty()) return {};
  return {{"Access-Control-Allow-Origin", origin},
          {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, Anthropic-Version, Anthropic-Beta"},
          {"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
          {"Vary", "Origin"}};
}

bool is_health(std::string_view path) {
  return path == "/health" || path == "/v1/health";
}

}  // namespace dspack::runtime
