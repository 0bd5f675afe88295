#include "format/source/hub_name.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "format/file_system.h"
#include "format/source/http_repository.h"

namespace dspack::format {
namespace {

constexpr std::string_view kDefaultEndpoint = "https://huggingface.co";
constexpr size_t kMaxRevisionBytes = 250;  // git's own names end there

bool is_name(std::string_view text) {
  return !text.empty() && text.front() != '.' && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  });
}

bool is_repository(std::string_view text) {
  const size_t slash = text.find('/');
  return slash != std::string_view::npos && is_name(text.substr(0, slash)) && is_name(text.substr(slash + 1));
}

bool is_hexadecimal(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

/// A revision is one component of a URL's path, whatever it has in it.
std::string url_component(std::string_view text) {
  std::string encoded = url_path(text);
  for (size_t at = 0; (at = encoded.find('/', at)) != std::string::npos;)
    encoded.replace(at, 1, "%2F");
  return encoded;
}

}  // namespace

std::optional<HubName> parse_hub_name(std::string_view text) {
  const size_t at = text.find('@');
  const std::string_view repository = text.substr(0, at);
  const std::string_view revision = at == std::string_view::npos ? "main" : text.substr(at + 1);
  // As a path it must be one that stays where it is put: in URLs, and in the names of the local cache.
  if (!is_repository(repository) || revision.size() > kMaxRevisionBytes || unsafe_path_reason(revision))
    return std::nullopt;
  return HubName{std::string(repository), std::string(revision)};
}

bool is_commit(std::string_view revision) {
  return (revision.size() == 40 || revision.size() == 64) && is_hexadecimal(revision);
}

bool is_commit_id(std::string_view text) {
  return text.size() >= 7 && text.size() <= 64 && is_hexadecimal(text);
}

std::string hub_page_url(std::string_view endpoint, std::string_view repository) {
  return fmt::format("{}/{}", endpoint, repository);
}

std::string hub_file_url(std::string_view endpoint, const HubName& name, std::string_view path) {
  return fmt::format("{}/{}/resolve/{}/{}", endpoint, name.repository, url_component(name.revision), url_path(path));
}

std::string hub_api_url(std::string_view endpoint, const HubName& name, std::string_view what) {
  return fmt::format("{}/api/models/{}/{}/{}", endpoint, name.repository, what, url_component(name.revision));
}

std::string at_endpoint(const std::string& url, const std::string& endpoint) {
  const bool ours = url.starts_with(kDefaultEndpoint) && url.substr(kDefaultEndpoint.size()).starts_with('/');
  return ours && endpoint != kDefaultEndpoint ? endpoint + url.substr(kDefaultEndpoint.size()) : url;
}

std::optional<std::string> repository_of_url(std::string_view endpoint, std::string_view url) {
  if (!url.starts_with(endpoint) || !url.substr(endpoint.size()).starts_with('/')) return std::nullopt;
  const std::string_view path = url.substr(endpoint.size() + 1);
  const size_t slash = path.find('/');
  const size_t end = slash == std::string_view::npos ? slash : path.find('/', slash + 1);
  if (end == std::string_view::npos || !is_repository(path.substr(0, end))) return std::nullopt;
  if (!path.substr(end).starts_with("/resolve/")) return std::nullopt;
  return std::string(path.substr(0, end));
}

}  // namespace dspack::format
