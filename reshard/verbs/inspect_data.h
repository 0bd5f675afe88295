// The catalogue as the page of `reshard inspect --html` reads it, with two arrangements of its tensors in files: as
// they lie, and as they lay before packing or would lie after it. It is JSON that stays small, since experts are alike.
//   kinds   [[name pieces, dtype, role, bytes, shape], ...]: what tensors there are. A name is its pieces with
//           layer and expert number between them; one piece is a whole name. Of an MTP module that is numbered apart
//           (a layer from 60000 on) the number is its own, which is that less 60000. dtype and role are indices into
//           dtypes and roles.
//   sets    [[kind, ...], ...]: the tensors of one unit
//   units   [[place, first expert or -1, repeated, set], ...]: a unit is a routed expert, the rest of a layer (expert
//           -1), or all tensors of a part outside of the layers; place is the layer's number or the part's name.
//           `repeated` experts follow each other. Tensors are numbered through all units, in the order of their sets.
//   before, after  {"files": [[path, bytes, data start, [skip, tensors, ...]], ...]}: the tensors of a file by offset,
//           adjacent, in runs of consecutive numbers: `skip` from the end of the last run (at first 0), then so many.
//           A run of 0 tensors is a hole of `skip` bytes.
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

/// Which tensors lie in a file, and where.
struct ArrangedFile {
  std::string path;
  uint64_t size_bytes = 0;
  uint64_t data_start = 0;
  std::vector<uint32_t> tensors;  // catalogue indices, by offset
  std::vector<uint64_t> offsets;  // absolute, of each tensor
};

/// Files by path.
using Arrangement = std::vector<ArrangedFile>;

/// As the checkpoint lies.
[[nodiscard]] Arrangement present_arrangement(const format::Checkpoint& checkpoint);

/// As a grouping would lay it out.
[[nodiscard]] Arrangement planned_arrangement(const format::Grouping& by, const format::Checkpoint& checkpoint);

/// As it lay in the shards that a packed repository was made from.
[[nodiscard]] Arrangement source_arrangement(const std::vector<ShardImage>& shards,
                                             const format::Checkpoint& checkpoint);

/// What the page says about the two arrangements beside them.
struct PageTexts {
  std::string place;          // the checkpoint, as the user named it
  std::string about;          // one line on what it is
  std::string before_title;   // of the arrangement before packing
  std::string before_reason;  // why there is none
  std::string after_title;
  std::vector<std::string> warnings;
};

[[nodiscard]] Result<format::Json> page_data(const format::Checkpoint& checkpoint, const PageTexts& texts,
                                             const std::optional<Arrangement>& before, const Arrangement& after);

}  // namespace dspack::reshard
