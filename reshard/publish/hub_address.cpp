#include "reshard/publish/hub_address.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "format/source/http_headers.h"
#include "format/source/http_repository.h"
#include "format/source/hub_name.h"

namespace dspack::reshard {
namespace {

constexpr size_t kMaxNameBytes = 96;  // the Hub's own limit for either part
constexpr size_t kShownBytes = 300;

/// The Hub's rule: letters, digits, "-", "_", "."; none of the last three at either end, no "--" or "..".
bool is_name(std::string_view text) {
  const auto alphanumeric = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  if (text.empty() || text.size() > kMaxNameBytes || !alphanumeric(text.front()) || !alphanumeric(text.back()))
    return false;
  if (text.find("--") != std::string_view::npos || text.find("..") != std::string_view::npos) return false;
  return std::ranges::all_of(
      text, [&](char c) { return alphanumeric(c) || std::string_view("-_.").find(c) != std::string_view::npos; });
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; !from.empty() && (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

/// "...://host/path?secret=x more" becomes "...://host/path?... more".
void drop_queries(std::string& text) {
  constexpr std::string_view kUrlEnd = " \t\r\n\"'<>)]}";
  constexpr std::string_view kShort = "?...";
  for (size_t at = 0; (at = text.find("://", at)) != std::string::npos; at += 3) {
    const size_t end = std::min(text.find_first_of(kUrlEnd, at), text.size());
    const size_t query = text.find('?', at);
    if (query < end) text.replace(query, end - query, kShort);
  }
}

}  // namespace

std::string HubAddress::api(std::string_view tail) const {
  return fmt::format("{}/api/models/{}{}", endpoint, repository, tail);
}

Result<std::string> parse_repository_name(std::string_view text) {
  const std::string_view given = text;
  // The branch is --revision's business.
  const auto pasted = format::pasted_hub_name(text, {});
  if (pasted && pasted->revision == kDefaultRevision) text = pasted->repository;
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos && is_name(text.substr(0, slash)) && is_name(text.substr(slash + 1)))
    return std::string(text);
  return Error{
      ErrorKind::invalid,
      fmt::format("\"{}\" is not of the form ORG/NAME (letters, digits, '-', '_' and '.'; 96 of them at most in "
                  "either part)",
                  given)};
}

HubAddress hub_address(const format::RemoteOptions& remote, std::string repository) {
  std::string endpoint = remote.hub_endpoint;
  while (endpoint.ends_with('/'))
    endpoint.pop_back();
  return {std::move(endpoint), remote.hub_token, std::move(repository)};
}

std::string encoded_revision(std::string_view revision) {
  std::string encoded = format::url_path(revision);
  replace_all(encoded, "/", "%2F");
  return encoded;
}

std::string token_for(const HubAddress& hub, const std::string& url) {
  return format::same_host_url(hub.endpoint + "/", url) ? hub.token : std::string();
}

std::string public_url(std::string_view url) {
  return format::without_password(url.substr(0, url.find_first_of("?#")));
}

std::string redacted(std::string_view text, const std::string& token) {
  std::string shown(text);
  replace_all(shown, token, "[token]");
  drop_queries(shown);
  return shown;
}

std::string public_words(std::string_view text, const std::string& token) {
  // Much shorter first, for the time it takes; cut only behind the replacing, so that no half of a token stays.
  std::string shown = redacted(text.substr(0, 16 * kShownBytes), token);
  if (shown.size() > kShownBytes) shown.resize(kShownBytes);
  return std::string(format::trim_header(shown));
}

}  // namespace dspack::reshard
