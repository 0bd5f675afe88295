// The plan: recipe x catalogue -> the files to make and the copies that fill them. Pure, printable, no I/O.
// Threads: immutable once made. Lifetime: refers to the catalogue by index; keep both together.
// Errors: those of product.h, and invalid (a header longer than readers accept), unsupported (a source that is already
// packed, a name that the manifest cannot hold, grouping by experts whose names belong to no known family).
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

/// How one tensor gets from a source shard into a file.
struct Copy {
  uint32_t tensor = 0;  // catalogue index
  ByteRange source;     // absolute in the shard
  uint32_t file = 0;    // index into Plan::files, or kNoFile
  uint32_t slot = 0;    // index into that file's tensors
  uint64_t offset = 0;  // absolute in that file
  uint64_t bytes = 0;   // size in that file
  Conversion conversion = Conversion::none;
  std::vector<uint32_t> needs{};  // as in Made
};
/// File index of a tensor that is used up by another's conversion: it is read for its digest but not written.
inline constexpr uint32_t kNoFile = UINT32_MAX;

/// The ranges of a source shard that are read.
struct ShardRead {
  bool whole = true;              // includes the header; its SHA-256 can then be computed
  std::vector<ByteRange> ranges;  // ascending and disjoint, after the header
  [[nodiscard]] uint64_t bytes() const;
};

struct Plan {
  Recipe recipe;                          // in a repack's plan, layers, if set, are a LayerMap
  format::Checkpoint result;              // the tensors that the repository will hold
  format::Quantization stored;            // as in SourceFacts
  std::vector<Alias> aliases;             // as in Product
  bool complete = true;                   // as in Product
  std::vector<std::string> warnings;      // as in Product
  std::vector<PlannedFile> files;         // by path; their tensors are indices into `result`
  std::vector<std::vector<Copy>> shards;  // per catalogue file, by source offset
  std::vector<ShardRead> reads;           // per catalogue file
  uint64_t output_bytes = 0;              // total size of `files`, headers included
  uint64_t source_bytes = 0;              // bytes to read
  std::string digest;                     // hex; the same plan in the same program version gives the same files
};

/// The order of tensors within a file, as far as alignment allows: the order in which a source is read
/// (format::reading_order), or the order in which an MLP uses them, with experts by number, as in caches.
enum class FileOrder { of_source, of_use };

/// Path, size and header (length and JSON) of a source shard, for the plan's digest.
struct PlanSource {
  std::string_view path;
  uint64_t size_bytes = 0;
  std::string_view header;
};
/// Digest, as hex, of everything that decides the bytes of the result except the weights themselves. `facts`: JSON of
/// the facts that the plan took from the weights; null: none.
[[nodiscard]] std::string plan_digest(const Recipe& recipe, const std::vector<PlanSource>& source,
                                      const format::Json& facts = {}, FileOrder order = FileOrder::of_source);

/// By source offset, then source end, tensor and conversion: a shard's record lists the copies of a tensor in this
/// order.
void sort_copies(std::vector<Copy>& copies);
/// The ranges to read for sorted copies: ascending and disjoint, merged across small gaps.
[[nodiscard]] std::vector<ByteRange> wanted_ranges(const std::vector<Copy>& copies);

/// The recipe's layers change only the digest: each layer is stored once, even if it is repeated or dropped.
[[nodiscard]] Result<Plan> make_plan(const Recipe& recipe, const format::Checkpoint& source,
                                     const SourceFacts& facts = {}, FileOrder order = FileOrder::of_source);

}  // namespace dspack::reshard
