// Parts: how several processes, on one machine or many, share one run. All have the same plan; each reads its own
// source shards, keeps unfinished work in its own folder, and gives final names to the files that consist only of its
// shards. The other files stay partial in each of their parts until `reshard seal` joins them.
// Threads: pure functions of plain values. Errors: invalid (a text that is no part).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/file_system.h"
#include "reshard/plan/plan.h"

namespace dspack::reshard {

/// One of `count` parts, numbered from 1.
struct Part {
  uint32_t number = 1;
  uint32_t count = 1;
  bool operator==(const Part&) const = default;
};
inline constexpr uint32_t kMaxParts = 10'000;

/// Parses "2/4".
[[nodiscard]] Result<Part> parse_part(std::string_view text);
[[nodiscard]] std::string to_string(Part part);

/// The source shards of a part: consecutive in the catalogue, so that few files are shared by two parts, and about the
/// same number of bytes to read in every part. Each shard is in exactly one part; a part may be empty.
[[nodiscard]] std::vector<uint64_t> shards_of(const Plan& plan, Part part);

/// The shards that a process works on, and its folders.
struct RunScope {
  format::Path out;              // folder of the packed repository
  format::Path work;             // unfinished work: journal, lock, part/
  std::vector<uint64_t> shards;  // shards that are read, ascending
};
[[nodiscard]] RunScope whole_scope(const Plan& plan, const format::Path& out);
/// A part keeps its unfinished work in .reshard/parts/2-of-4.
[[nodiscard]] RunScope part_scope(const Plan& plan, const format::Path& out, Part part);

/// Path of a planned file until it has all its bytes.
[[nodiscard]] format::Path partial_path(const RunScope& scope, const format::PlannedFile& file);

/// Path of the complete file, compressed or not.
[[nodiscard]] format::Path final_path(const Plan& plan, const RunScope& scope, const format::PlannedFile& file);

/// For each file of the plan, the bytes that are written when these shards are read: the tensors that come from them
/// and, if there are any, the header. For all shards: the files' sizes.
[[nodiscard]] std::vector<uint64_t> bytes_per_file(const Plan& plan, const std::vector<uint64_t>& shards);

/// Number of bytes to read from a shard.
[[nodiscard]] inline uint64_t shard_bytes(const Plan& plan, const format::Checkpoint& source, uint64_t shard) {
  return plan.reads[shard].whole ? source.files()[shard].size_bytes : plan.reads[shard].bytes();
}

}  // namespace dspack::reshard
