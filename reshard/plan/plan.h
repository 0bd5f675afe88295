// The plan: recipe x catalogue -> the files to make and the copies that fill them. Pure, printable, no I/O.
// Threads: immutable once made. Lifetime: refers to the catalogue by index; keep both together.
// Errors: those of product.h, and invalid (a header that no reader takes), unsupported (a source that is packed
// already, a name that the manifest cannot hold, experts to group by whose names are of no known family).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/packing/planned_file.h"
#include "reshard/plan/product.h"

namespace dspack::reshard {

using format::planned_header;
using format::PlannedFile;
using format::rows_per_block;

/// One tensor's way from a source shard into a file.
struct Copy {
  uint32_t tensor = 0;  // catalogue index
  ByteRange source;     // absolute in the shard
  uint32_t file = 0;    // index into Plan::files, or kNoFile
  uint32_t slot = 0;    // index into that file's tensors
  uint64_t offset = 0;  // absolute in that file
  uint64_t bytes = 0;   // in that file
  Conversion conversion = Conversion::none;
  std::vector<uint32_t> needs{};  // as in Made
};
/// Of a tensor that another's conversion uses up: it is read for its digest, and written nowhere.
inline constexpr uint32_t kNoFile = UINT32_MAX;

/// What is read of a source shard.
struct ShardRead {
  bool whole = true;              // then its SHA-256 comes with it
  std::vector<ByteRange> ranges;  // ascending and apart, behind the header
  [[nodiscard]] uint64_t bytes() const;
};

struct Plan {
  Recipe recipe;                          // of a repack: its layers, if any, are a LayerMap
  format::Checkpoint result;              // what the repository is to hold
  format::Quantization stored;            // as in SourceFacts
  std::vector<Alias> aliases;             // as in Product
  bool complete = true;                   // as in Product
  std::vector<std::string> warnings;      // as in Product
  std::vector<PlannedFile> files;         // by path; their tensors are those of `result`
  std::vector<std::vector<Copy>> shards;  // per catalogue file, by source offset
  std::vector<ShardRead> reads;           // per catalogue file
  uint64_t output_bytes = 0;              // of `files`, headers included
  uint64_t source_bytes = 0;              // to be read
  std::string digest;                     // hex; equal plans of equal program versions give equal files
};

/// In which order tensors lie in a file, as far as alignment allows: that in which a source is read
/// (format::reading_order), or that in which an MLP uses them, experts by number, which is that of caches.
enum class FileOrder { of_source, of_use };

/// Path, size and header (length and JSON) of a source shard, for the plan's digest.
struct PlanSource {
  std::string_view path;
  uint64_t size_bytes = 0;
  std::string_view header;
};
/// Everything that decides the bytes of the result except the weights themselves, as hex. `facts`: what the plan took
/// from the weights, as JSON; null: nothing.
[[nodiscard]] std::string plan_digest(const Recipe& recipe, const std::vector<PlanSource>& source,
                                      const format::Json& facts = {}, FileOrder order = FileOrder::of_source);

/// By source offset; copies of the same tensor side by side, in the order in which a shard's record has them.
void sort_copies(std::vector<Copy>& copies);
/// What must be read for copies that are sorted: ranges ascending and apart, small gaps read along.
[[nodiscard]] std::vector<ByteRange> wanted_ranges(const std::vector<Copy>& copies);

/// Layers of the recipe change the digest alone: each is stored once, and dropped ones stay.
[[nodiscard]] Result<Plan> make_plan(const Recipe& recipe, const format::Checkpoint& source,
                                     const SourceFacts& facts = {}, FileOrder order = FileOrder::of_source);

}  // namespace dspack::reshard
