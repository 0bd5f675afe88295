#include "reshard/run/declarations.h"

#include <algorithm>

#include <fmt/format.h>

namespace dspack::reshard {

using format::HashKind;

Declared declared_sha256(const format::Digest& sha256, std::string by) {
  return {{HashKind::sha256, to_hex(sha256), {}}, std::move(by)};
}

std::vector<Declared> declared_of(const std::string& path, const std::vector<Declarations>& lists,
                                  const std::optional<format::ContentDigest>& by_place) {
  std::vector<Declared> declared;
  for (const Declarations& list : lists) {
    const auto named = list.files.find(path);
    if (named == list.files.end()) continue;
    declared.push_back(declared_sha256(named->second.sha256, list.by));
  }
  if (by_place) declared.push_back({*by_place, fmt::format("its server ({})", by_place->by)});
  return declared;
}

Result<void> check_declared(const std::vector<Declared>& declared, const format::Digest& sha256,
                            const std::map<HashKind, std::string>& others) {
  const std::string sha256_hex = to_hex(sha256);
  for (const Declared& wanted : declared) {
    const HashKind kind = wanted.digest.kind;
    const auto other = others.find(kind);
    if (kind != HashKind::sha256 && other == others.end()) continue;
    const std::string& got = kind == HashKind::sha256 ? sha256_hex : other->second;
    if (got == wanted.digest.hex) continue;
    return Error{ErrorKind::corrupt, fmt::format("what was read has {} {}, {} declares {}", to_string(kind), got,
                                                 wanted.by, wanted.digest.hex)};
  }
  return {};
}

OtherHashes::OtherHashes(const std::vector<Declared>& declared) {
  for (const Declared& one : declared) {
    if (one.digest.kind != HashKind::sha256) hashes_.try_emplace(one.digest.kind, one.digest.kind);
  }
}

void OtherHashes::update(std::span<const std::byte> bytes) {
  for (auto& [kind, hash] : hashes_)
    hash.update(bytes);
}

std::map<HashKind, std::string> OtherHashes::finish() {
  std::map<HashKind, std::string> digests;
  for (auto& [kind, hash] : hashes_)
    digests.emplace(kind, hash.finish_hex());
  return digests;
}

// The form of sha256sum (GNU coreutils): "hex  path", or "hex *path" for binary mode, which is the same on POSIX.
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
