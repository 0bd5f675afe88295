// What others declare about a source's files: SHA-256 and size, by a list or by the Hub.
// Threads: plain values and pure functions.
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

}  // namespace dspack::reshard
