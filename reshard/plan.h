// The plan: recipe x catalogue -> the files to make and the copies that fill them. Pure, printable, no I/O.
// Threads: immutable once made. Lifetime: refers to the catalogue by index; keep both together.
// Errors: invalid (a missing scale, a header that no reader takes), unsupported (a source that is packed already, a
// name that the manifest cannot hold, experts to group by whose names are of no known family).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/packing/planned_file.h"
#include "reshard/recipe.h"

namespace dspack::reshard {

using format::planned_header;
using format::PlannedFile;
using format::rows_per_block;

/// One tensor's way from a source shard into a file.
struct Copy {
  uint32_t tensor = 0;  // catalogue index
  ByteRange source;     // absolute in the shard
  uint32_t file = 0;    // index into Plan::files
  uint32_t slot = 0;    // index into that file's tensors
  uint64_t offset = 0;  // absolute in that file
};

struct Plan {
  Recipe recipe;                          // of a repack: its layers, if any, are a LayerMap
  std::vector<PlannedFile> files;         // by path
  std::vector<std::vector<Copy>> shards;  // per catalogue file, by source offset; together they cover its data
  uint64_t output_bytes = 0;              // of `files`, headers included
  uint64_t source_bytes = 0;              // to be read
  std::string digest;                     // hex; equal plans of equal program versions give equal files
};

/// Path, size and header (length and JSON) of a source shard, for the plan's digest.
struct PlanSource {
  std::string_view path;
  uint64_t size_bytes = 0;
  std::string_view header;
};
/// Everything that decides the bytes of the result except the weights themselves, as hex.
[[nodiscard]] std::string plan_digest(const Recipe& recipe, const std::vector<PlanSource>& source);

/// Layers of the recipe change the digest alone: each is stored once, and dropped ones stay.
[[nodiscard]] Result<Plan> make_plan(const Recipe& recipe, const format::Checkpoint& source);

}  // namespace dspack::reshard
