#include "format/source/http_exchange.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

namespace dspack::format {
namespace {

constexpr size_t kMaxHeaders = 200;  // no server needs more, and a hostile one shall not fill the memory

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

}  // namespace

std::string_view HttpReply::header(std::string_view lower_case_name) const {
  const auto found = std::ranges::find(headers, lower_case_name, &std::pair<std::string, std::string>::first);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

void add_reply_line(HttpReply& reply, std::string_view line) {
  if (line.starts_with("HTTP/")) {
    reply.headers.clear();
    return;
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || reply.headers.size() >= kMaxHeaders) return;
  reply.headers.emplace_back(lower_case(trim_header(line.substr(0, colon))), trim_header(line.substr(colon + 1)));
}

std::optional<double> asked_wait_seconds(const HttpReply& reply) {
  if (const auto seconds = parse_decimal(reply.header("retry-after"))) return static_cast<double>(*seconds);
  if (const auto seconds = parse_rate_limit(reply.header("ratelimit"))) return static_cast<double>(*seconds) + 1;
  return std::nullopt;
}

std::optional<HttpFailure> passing_failure(const HttpReply& reply, std::string_view name) {
  if (reply.status != 408 && reply.status != 429 && reply.status < 500) return std::nullopt;
  HttpFailure failure{Error{ErrorKind::network, fmt::format("{}: the server answered HTTP {}", name, reply.status)},
                      true};
  failure.wait_seconds = asked_wait_seconds(reply);
  return failure;
}

}  // namespace dspack::format
