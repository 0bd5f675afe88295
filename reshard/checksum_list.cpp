// The form of sha256sum (GNU coreutils): "hex  path", or "hex *path" for binary mode, which is the same on POSIX.
#include <algorithm>

#include <fmt/format.h>

#include "reshard/declarations.h"

namespace dspack::reshard {
namespace {

constexpr size_t kHexDigits = 64;

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

}  // namespace

Result<Declarations> parse_checksum_list(std::string_view text, std::string by) {
  Declarations list{.by = std::move(by), .files = {}, .weights = {}};
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::optional<format::Digest> sha256 = format::parse_digest(lower(line.substr(0, kHexDigits)));
    const std::string_view rest = line.substr(std::min(kHexDigits, line.size()));
    std::string path(rest.substr(std::min<size_t>(2, rest.size())));
    while (path.starts_with("./"))
      path.erase(0, 2);
    if (!sha256 || path.empty() || (!rest.starts_with("  ") && !rest.starts_with(" *"))) {
      return Error{
          ErrorKind::invalid,
          fmt::format("{}: line {} is not of the form \"SHA-256 in hex, two spaces, path\" that sha256sum writes",
                      list.by, number)};
    }
    const auto [known, added] = list.files.emplace(path, format::DeclaredFile{*sha256, {}});
    if (!added && known->second.sha256 != *sha256)
      return Error{ErrorKind::invalid, fmt::format("{}: line {} gives {} a second digest", list.by, number, path)};
    if (added && path.ends_with(".safetensors")) list.weights.push_back(std::move(path));
  }
  std::sort(list.weights.begin(), list.weights.end());
  return list;
}

}  // namespace dspack::reshard
