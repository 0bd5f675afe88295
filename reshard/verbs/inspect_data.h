// The catalogue as the page of `reshard inspect --html` reads it, with two arrangements of its tensors in files: the
// present one, and the one before packing or after it. It is JSON that stays small, since experts are alike.
//   kinds   [[name pieces, dtype, role, bytes, shape], ...]: the different tensors. A name is its pieces with the layer
//           and expert number between them; a single piece is a whole name. For an MTP module that is numbered apart
//           (layer 60000 or higher) the number is the layer minus 60000. dtype and role are indices into dtypes and
//           roles.
//   sets    [[kind, ...], ...]: the tensors of one unit
//   units   [[place, first expert or -1, repeated, set], ...]: a unit is a routed expert, the rest of a layer (expert
//           -1), or all tensors of a part outside the layers; place is the layer's number or the part's name.
//           `repeated` is a number of consecutive experts. Tensors are numbered across all units, in the order of
//           their sets.
//   before, after  {"files": [[path, bytes, data start, [skip, tensors, ...]], ...]}: the tensors of a file by offset,
//           adjacent, as runs of consecutive numbers: `skip` from the end of the previous run (at first 0), then the
//           number of tensors. A run of 0 tensors is a hole of `skip` bytes.
// Threads: pure functions. Lifetime: arrangements refer to the catalogue by index; keep both together. Errors:
// unsupported (sizes that JavaScript's numbers cannot hold).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/json.h"
#include "format/packing/planned_file.h"
#include "reshard/verbs/rebuild.h"

namespace dspack::reshard {

/// The tensors in a file, and their offsets.
struct ArrangedFile {
  std::string path;
  uint64_t size_bytes = 0;
  uint64_t data_start = 0;
  std::vector<uint32_t> tensors;  // catalogue indices, by offset
  std::vector<uint64_t> offsets;  // absolute, one per tensor
};

/// Files by path.
using Arrangement = std::vector<ArrangedFile>;

/// The checkpoint's files as they are.
[[nodiscard]] Arrangement present_arrangement(const format::Checkpoint& checkpoint);

/// The files that a grouping would make.
[[nodiscard]] Arrangement planned_arrangement(const format::Grouping& by, const format::Checkpoint& checkpoint);

/// The shards that a packed repository was made from.
[[nodiscard]] Arrangement source_arrangement(const std::vector<ShardImage>& shards,
                                             const format::Checkpoint& checkpoint);

/// Texts on the page beside the two arrangements.
struct PageTexts {
  std::string place;          // the checkpoint, as the user named it
  std::string about;          // one line that describes it
  std::string before_title;   // title of the arrangement before packing
  std::string before_reason;  // why that arrangement is missing
  std::string after_title;
  std::vector<std::string> warnings;
};

[[nodiscard]] Result<format::Json> page_data(const format::Checkpoint& checkpoint, const PageTexts& texts,
                                             const std::optional<Arrangement>& before, const Arrangement& after);

}  // namespace dspack::reshard
