#include "format/hub/name.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "format/file_system.h"
#include "format/http/headers.h"

namespace dspack::format {
namespace {

constexpr std::string_view kDefaultEndpoint = "https://huggingface.co";
constexpr size_t kMaxRevisionBytes = 250;  // git's own limit
constexpr size_t kMaxNameBytes = 96;       // the Hub's limit for organization and name

bool is_name(std::string_view text) {
  return !text.empty() && text.front() != '.' && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  });
}

/// The Hub's rule: letters, digits, "-", "_", "."; none of the last three at either end, no "--" or "..".
bool is_hub_name(std::string_view text) {
  const auto alphanumeric = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  if (text.empty() || text.size() > kMaxNameBytes || !alphanumeric(text.front()) || !alphanumeric(text.back()))
    return false;
  if (text.find("--") != std::string_view::npos || text.find("..") != std::string_view::npos) return false;
  return std::ranges::all_of(
      text, [&](char c) { return alphanumeric(c) || std::string_view("-_.").find(c) != std::string_view::npos; });
}

bool is_repository(std::string_view text) {
  const size_t slash = text.find('/');
  return slash != std::string_view::npos && is_name(text.substr(0, slash)) && is_name(text.substr(slash + 1));
}

bool is_hexadecimal(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string_view without_trailing_slashes(std::string_view text) {
  while (text.ends_with('/'))
    text.remove_suffix(1);
  return text;
}

/// The rest after `prefix`, whose case does not matter; nullopt: `text` begins otherwise.
std::optional<std::string_view> after(std::string_view text, std::string_view prefix) {
  if (prefix.empty() || !equal_ignoring_case(text.substr(0, prefix.size()), prefix)) return std::nullopt;
  return text.substr(prefix.size());
}

/// The path of an address at the Hub, without query and fragment.
std::optional<std::string_view> path_at_hub(std::string_view text) {
  for (const std::string_view scheme : {"https://", "http://"}) {
    if (const auto rest = after(text, scheme)) text = *rest;
  }
  for (const std::string_view host : {"huggingface.co/", "www.huggingface.co/", "hf.co/"}) {
    if (const auto path = after(text, host)) return path->substr(0, path->find_first_of("?#"));
  }
  return std::nullopt;
}

/// Decodes percent escapes, as in "refs%2Fpr%2F1". nullopt: a percent sign without two digits.
std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    unsigned byte = 0;
    const char* begin = text.data() + std::min(i + 1, text.size());
    const char* end = text.data() + std::min(i + 3, text.size());
    if (const auto [at, error] = std::from_chars(begin, end, byte, 16); error != std::errc() || at != begin + 2)
      return std::nullopt;
    decoded += static_cast<char>(byte);
    i += 2;
  }
  return decoded;
}

/// The revision in the address of a page, whose path continues with `kind` and `rest` after "org/name/".
std::optional<std::string> pasted_revision(std::string_view kind, std::string_view rest) {
  constexpr std::array<std::string_view, 4> kOfFiles{"blob", "resolve", "raw", "blame"};
  constexpr std::array<std::string_view, 3> kOfAll{"tree", "commit", "commits"};
  const bool names_file = std::ranges::find(kOfFiles, kind) != kOfFiles.end();
  if (!names_file && std::ranges::find(kOfAll, kind) == kOfAll.end()) return std::nullopt;
  size_t end = rest.find('/');
  if (rest.starts_with("refs/")) {  // refs/pr/7: three components, if the slashes are not encoded
    const size_t second = rest.find('/', 5);
    end = second == std::string_view::npos ? second : rest.find('/', second + 1);
  }
  // A folder of a repository is no checkpoint, and the user did not name the whole repository.
  if (!names_file && end != std::string_view::npos) return std::nullopt;
  return percent_decoded(rest.substr(0, end));
}

}  // namespace

bool is_hub_address(std::string_view text) {
  return path_at_hub(text).has_value();
}

std::optional<HubName> pasted_hub_name(std::string_view text, std::string_view endpoint) {
  if (const auto name = after(text, "hf://")) {
    const std::string_view rest = without_trailing_slashes(*name);
    const auto model = after(rest, "models/");
    return parse_hub_name(model && model->find('/') != std::string_view::npos ? *model : rest);
  }
  auto path = path_at_hub(text);
  if (!path) path = after(text, endpoint);
  if (!path) return std::nullopt;
  std::string_view rest = without_trailing_slashes(path->substr(0, path->find_first_of("?#")));
  if (!endpoint.empty() && rest.starts_with('/')) rest.remove_prefix(1);
  const size_t slash = std::min(rest.find('/'), rest.size());
  const size_t end = std::min(rest.find('/', slash + 1), rest.size());
  if (end == rest.size() || rest.substr(0, end).find('@') != std::string_view::npos) return parse_hub_name(rest);
  const std::string_view page = rest.substr(end + 1);
  const size_t kind = std::min(page.find('/'), page.size());
  const auto revision = pasted_revision(page.substr(0, kind), page.substr(std::min(kind + 1, page.size())));
  if (!revision) return std::nullopt;
  return parse_hub_name(fmt::format("{}@{}", rest.substr(0, end), *revision));
}

std::optional<HubName> parse_hub_name(std::string_view text) {
  const size_t at = text.find('@');
  const std::string_view repository = text.substr(0, at);
  const std::string_view revision = at == std::string_view::npos ? kDefaultRevision : text.substr(at + 1);
  // It must be safe as a path, since it becomes part of URLs and of names in the local cache.
  if (!is_repository(repository) || revision.size() > kMaxRevisionBytes || unsafe_path_reason(revision))
    return std::nullopt;
  return HubName{std::string(repository), std::string(revision)};
}

Result<std::string> parse_repository_name(std::string_view text) {
  const std::string_view given = text;
  // --revision chooses the branch.
  const auto pasted = pasted_hub_name(text, {});
  if (pasted && pasted->revision == kDefaultRevision) text = pasted->repository;
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos && is_hub_name(text.substr(0, slash)) && is_hub_name(text.substr(slash + 1)))
    return std::string(text);
  return Error{
      ErrorKind::invalid,
      fmt::format("\"{}\" is not of the form ORG/NAME (letters, digits, '-', '_' and '.'; 96 of them at most in "
                  "either part)",
                  given)};
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
