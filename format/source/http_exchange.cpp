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

/// The number behind ";t=" in the first item of a RateLimit list.
std::optional<uint64_t> window_seconds(std::string_view rate_limit) {
  std::string_view item = rate_limit.substr(0, rate_limit.find(','));
  while (!item.empty()) {
    const std::string_view field = trim_header(item.substr(0, item.find(';')));
    if (field.starts_with("t=")) return parse_decimal(field.substr(2));
    const size_t end = item.find(';');
    item = end == std::string_view::npos ? std::string_view() : item.substr(end + 1);
  }
  return std::nullopt;
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
  if (const auto seconds = window_seconds(reply.header("ratelimit"))) return static_cast<double>(*seconds) + 1;
  return std::nullopt;
}

std::optional<HttpFailure> passing_failure(const HttpReply& reply, std::string_view name) {
  if (reply.status != 408 && reply.status != 429 && reply.status < 500) return std::nullopt;
  HttpFailure failure{Error{ErrorKind::network, fmt::format("{}: the server answered HTTP {}", name, reply.status)},
                      true};
  failure.wait_seconds = asked_wait_seconds(reply);
  return failure;
}

std::optional<std::string> next_page(std::string_view link_header) {
  while (!link_header.empty()) {
    const size_t begin = link_header.find('<');
    const size_t end = link_header.find('>', begin == std::string_view::npos ? 0 : begin);
    if (begin == std::string_view::npos || end == std::string_view::npos) return std::nullopt;
    const std::string_view url = link_header.substr(begin + 1, end - begin - 1);
    link_header.remove_prefix(end + 1);
    const std::string_view parameters = link_header.substr(0, link_header.find('<'));
    if (parameters.find("rel=\"next\"") != std::string_view::npos ||
        parameters.find("rel=next") != std::string_view::npos)
      return std::string(url);
  }
  return std::nullopt;
}

}  // namespace dspack::format
