#include "format/http/headers.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/base/size.h"

namespace dspack::format {
namespace {

/// The trimmed parts of a header between separators; a separator in quotes or between < and > does not count.
std::vector<std::string_view> split_header(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  bool quoted = false;
  bool angled = false;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (!quoted && text[i] == '<') angled = true;
    if (!quoted && text[i] == '>') angled = false;
    if (text[i] != separator || quoted || angled) continue;
    parts.push_back(trim_header(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  parts.push_back(trim_header(text.substr(begin)));
  return parts;
}

bool is_next(std::string_view parameter) {
  if (!equal_ignoring_case(parameter.substr(0, 4), "rel=")) return false;
  return equal_ignoring_case(strip_etag(parameter.substr(4)), "next");
}

}  // namespace

std::optional<ContentRange> parse_content_range(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  const size_t dash = text.find('-');
  const size_t slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || slash < dash) return std::nullopt;
  const auto first = parse_decimal(text.substr(0, dash));
  const auto last = parse_decimal(text.substr(dash + 1, slash - dash - 1));
  const auto total = parse_decimal(text.substr(slash + 1));
  if (!first || !last || !total || *last < *first || *last >= *total) return std::nullopt;
  return ContentRange{{*first, *last + 1}, *total};
}

std::optional<uint64_t> parse_unsatisfied_range(std::string_view text) {
  if (!text.starts_with("bytes */")) return std::nullopt;
  return parse_decimal(text.substr(8));
}

std::optional<uint64_t> parse_rate_limit(std::string_view text) {
  std::optional<uint64_t> wait;
  for (const std::string_view limit : split_header(text, ',')) {
    std::optional<uint64_t> remaining;
    std::optional<uint64_t> reset;
    for (const std::string_view parameter : split_header(limit, ';')) {
      if (parameter.starts_with("r=")) remaining = parse_decimal(parameter.substr(2));
      if (parameter.starts_with("t=")) reset = parse_decimal(parameter.substr(2));
    }
    if (remaining == 0 && reset) wait = std::max(wait.value_or(0), *reset);
  }
  return wait;
}

std::string parse_next_link(std::string_view text) {
  for (const std::string_view link : split_header(text, ',')) {
    const std::vector<std::string_view> parts = split_header(link, ';');
    const std::string_view target = parts.front();
    if (target.size() < 2 || !target.starts_with('<') || !target.ends_with('>')) continue;
    if (std::any_of(parts.begin() + 1, parts.end(), is_next)) return std::string(target.substr(1, target.size() - 2));
  }
  return {};
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  });
}

std::string strip_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return std::string(etag);
}

std::string_view trim_header(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

std::optional<std::string> same_host_url(std::string_view url, std::string_view location) {
  const size_t scheme = url.find("://");
  if (scheme == std::string_view::npos || location.empty()) return std::nullopt;
  const std::string_view origin = url.substr(0, url.find('/', scheme + 3));
  if (location.starts_with('/') && !location.starts_with("//")) return std::string(origin).append(location);
  const bool same = location.starts_with(origin) && location.substr(origin.size()).starts_with('/');
  return same ? std::optional(std::string(location)) : std::nullopt;
}

bool leads_elsewhere(std::string_view url, std::string_view location) {
  if (same_host_url(url, location)) return location.starts_with("/\\");
  // The location must be relative to the path: a scheme has a colon, and clients take a backslash for a slash.
  const std::string_view path = location.substr(0, location.find_first_of("?#"));
  return path.empty() || path.starts_with('/') || path.find_first_of(":\\") != std::string_view::npos;
}

bool is_https(std::string_view url) {
  constexpr std::string_view kScheme = "https://";
  return equal_ignoring_case(url.substr(0, kScheme.size()), kScheme);
}

bool is_http(std::string_view url) {
  constexpr std::string_view kScheme = "http:";  // clients accept fewer slashes
  return equal_ignoring_case(url.substr(0, kScheme.size()), kScheme);
}

bool is_private_line(std::string_view url) {
  if (is_https(url)) return true;
  constexpr std::string_view kScheme = "http://";
  if (!equal_ignoring_case(url.substr(0, kScheme.size()), kScheme)) return false;
  std::string_view host = url.substr(kScheme.size());
  host = host.substr(0, host.find_first_of("/?#\\"));
  if (const size_t at = host.rfind('@'); at != std::string_view::npos) host.remove_prefix(at + 1);
  if (host == "[::1]" || host.starts_with("[::1]:")) return true;
  host = host.substr(0, host.find(':'));
  if (equal_ignoring_case(host, "localhost")) return true;
  // 127.evil.com is a name of another machine.
  const bool is_address = std::ranges::all_of(host, [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
  return is_address && host.starts_with("127.") && std::ranges::count(host, '.') == 3;
}

unsigned status_in(std::string_view status_line) {
  const size_t space = status_line.find(' ');
  if (space == std::string_view::npos) return 0;
  const auto status = parse_decimal(status_line.substr(space + 1, 3));
  return status ? static_cast<unsigned>(*status) : 0;
}

std::string url_path(std::string_view path) {
  std::string encoded;
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    encoded += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return encoded;
}

std::string url_component(std::string_view text) {
  std::string encoded = url_path(text);
  for (size_t at = 0; (at = encoded.find('/', at)) != std::string::npos;)
    encoded.replace(at, 1, "%2F");
  return encoded;
}

std::string without_password(std::string_view url) {
  return without_passwords(url);
}

std::string public_url(std::string_view url) {
  return without_password(url.substr(0, url.find_first_of("?#")));
}

}  // namespace dspack::format
