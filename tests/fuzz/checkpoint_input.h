// An ordinary checkpoint from a fuzzer's text: the index on the first line (empty: none), then one shard a line: its
// path, a space, the JSON of its header. Each shard's length is made to fit.
// Threads: thread-safe (pure functions).
#pragma once

#include <map>
#include <string>

#include "format/index.h"
#include "format/manifest.h"
#include "tests/fuzz/memory_repository.h"
#include "tests/fuzz/shard.h"
#include "tests/fuzz/target.h"

namespace dspack::fuzz {

inline MemoryFile shard_file(std::string_view json) {
  std::string text;
  for (size_t i = 0; i < 8; ++i)
    text += static_cast<char>((json.size() >> (8 * i)) & 0xff);
  return {text.append(json), claimed_file_bytes(json)};
}

inline MemoryRepository repository_of(std::string_view text) {
  const std::string_view index = take(text, '\n');
  std::map<std::string, MemoryFile> files;
  for (std::string_view line : split(text, '\n')) {
    const std::string path(take(line, ' '));
    files[path] = shard_file(line);
  }
  if (!index.empty()) files[format::kIndexPath] = {std::string(index), index.size()};
  return MemoryRepository(std::move(files));
}

}  // namespace dspack::fuzz
