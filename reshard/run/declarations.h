// What others declare about a source's files: SHA-256 and size, by a list or by the Hub.
// Threads: plain values and pure functions; an OtherHashes belongs to one thread at a time.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/source/repository.h"

namespace dspack::reshard {

/// What somebody declares about the source's files.
struct Declarations {
  std::string by;  // who, for people: "org/name@main", "SHA256SUMS"
  std::map<std::string, format::DeclaredFile> files;
  std::vector<std::string> weights;  // safetensors files that it names, where it can name files; sorted
};

/// A list in the form of sha256sum: lines "hex  path" or "hex *path". Errors: invalid, with the line.
[[nodiscard]] Result<Declarations> parse_checksum_list(std::string_view text, std::string by);

/// The list that a folder, local or on a server, has beside its files.
inline constexpr char kChecksumList[] = "SHA256SUMS";
inline constexpr uint64_t kMaxListBytes = 64ULL << 20;

/// What somebody declares of one file's content.
struct Declared {
  format::ContentDigest digest;
  std::string by;  // who, for people
};

[[nodiscard]] Declared declared_sha256(const format::Digest& sha256, std::string by);

/// Everything that is declared of a file: by those lists that name it, and by the place itself.
[[nodiscard]] std::vector<Declared> declared_of(const std::string& path, const std::vector<Declarations>& lists,
                                                const std::optional<format::ContentDigest>& by_place);

/// The digests of a content that are declared and are not SHA-256, which is computed anyway.
class OtherHashes {
 public:
  explicit OtherHashes(const std::vector<Declared>& declared);
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::map<format::HashKind, std::string> finish();

 private:
  std::map<format::HashKind, format::ContentHash> hashes_;
};

/// Refuses a content whose digests are not those declared; those of other kinds than SHA-256 come from `others`, and
/// what is not in there is passed over. Errors: corrupt, without the place.
[[nodiscard]] Result<void> check_declared(const std::vector<Declared>& declared, const format::Digest& sha256,
                                          const std::map<format::HashKind, std::string>& others);

}  // namespace dspack::reshard
