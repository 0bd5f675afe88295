// Parts: how several processes, on one machine or many, share one run. The plan is the same for all of them; each reads
// source shards of its own, keeps what is unfinished in a folder of its own, and gives final names to the files that
// are wholly made of its shards. The others stay partial in each of their parts until `reshard seal` joins them.
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

/// One of `count` parts; numbers begin with 1.
struct Part {
  uint32_t number = 1;
  uint32_t count = 1;
  bool operator==(const Part&) const = default;
};
inline constexpr uint32_t kMostParts = 10'000;

/// "2/4"
[[nodiscard]] Result<Part> parse_part(std::string_view text);
[[nodiscard]] std::string to_string(Part part);

/// The source shards of a part: neighbours in the catalogue's order, so that few files lie in two parts, and of every
/// part about the same number of bytes to read. The parts of one count have every shard once; some may have none.
[[nodiscard]] std::vector<uint64_t> shards_of(const Plan& plan, Part part);

/// What a process works on, and where.
struct RunScope {
  format::Path out;              // the packed repository
  format::Path work;             // what is unfinished: journal, lock, part/
  std::vector<uint64_t> shards;  // that are read, ascending
};
[[nodiscard]] RunScope whole_scope(const Plan& plan, const format::Path& out);
/// A part keeps what is unfinished in .reshard/parts/2-of-4.
[[nodiscard]] RunScope part_scope(const Plan& plan, const format::Path& out, Part part);

/// Where a file of the plan lies until it has all its bytes.
[[nodiscard]] format::Path partial_path(const RunScope& scope, const format::PlannedFile& file);

/// And where it lies from then on, compressed or not.
[[nodiscard]] format::Path final_path(const Plan& plan, const RunScope& scope, const format::PlannedFile& file);

/// Of each file of the plan what is written when these shards are read: the tensors that come from them and, if there
/// are any, the header. All shards: the files' sizes.
[[nodiscard]] std::vector<uint64_t> bytes_per_file(const Plan& plan, const std::vector<uint64_t>& shards);

/// What is to be read of a shard.
[[nodiscard]] inline uint64_t shard_bytes(const Plan& plan, const format::Checkpoint& source, uint64_t shard) {
  return plan.reads[shard].whole ? source.files()[shard].size_bytes : plan.reads[shard].bytes();
}

}  // namespace dspack::reshard
