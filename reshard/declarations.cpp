#include "reshard/declarations.h"

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

}  // namespace dspack::reshard
