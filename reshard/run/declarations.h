// Digests and sizes of a source's files as declared by others: by a checksum list, the Hub or a server.
// Threads: plain values and pure functions; an OtherHashes belongs to one thread at a time.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/source/repository.h"

namespace dspack::reshard {

/// The declarations of one list or place about the source's files.
struct Declarations {
  std::string by;  // the author, for messages: "org/name@main", "SHA256SUMS"
  std::map<std::string, format::DeclaredFile> files;
  std::vector<std::string> weights;  // safetensors files that it names, if it names files; sorted
};

/// Parses a list as sha256sum writes it: lines "hex  path" or "hex *path". Errors: invalid, naming the line.
[[nodiscard]] Result<Declarations> parse_checksum_list(std::string_view text, std::string by);

/// A list that a folder, local or on a server, may have beside its files.
inline constexpr char kChecksumList[] = "SHA256SUMS";
inline constexpr uint64_t kMaxListBytes = 64ULL << 20;

/// A declaration about one file's content.
struct Declared {
  format::ContentDigest digest;
  std::string by;  // the author, for messages
};

[[nodiscard]] Declared declared_sha256(const format::Digest& sha256, std::string by);

/// Everything declared about a file: by the lists that name it, and by the place itself.
[[nodiscard]] std::vector<Declared> declared_of(const std::string& path, const std::vector<Declarations>& lists,
                                                const std::optional<format::ContentDigest>& by_place);

/// Computes the declared digests of a content that are not SHA-256, which is computed in any case.
class OtherHashes {
 public:
  explicit OtherHashes(const std::vector<Declared>& declared);
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::map<format::HashKind, std::string> finish();

 private:
  std::map<format::HashKind, format::ContentHash> hashes_;
};

/// Compares a content's digests with the declared ones. Digests of other kinds than SHA-256 come from `others`; kinds
/// that are missing there are skipped. Errors: corrupt, without the place.
[[nodiscard]] Result<void> check_declared(const std::vector<Declared>& declared, const format::Digest& sha256,
                                          const std::map<format::HashKind, std::string>& others);

}  // namespace dspack::reshard
