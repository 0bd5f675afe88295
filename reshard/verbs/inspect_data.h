// The catalogue as the page of `reshard inspect --html` reads it: JSON that stays small, since experts are alike.
//   kinds   [[name pieces, dtype, role, bytes, shape], ...]: what tensors there are. A name is its pieces with layer
//   and
//           expert number between them; one piece is a whole name. dtype and role are indices into dtypes and roles.
//   sets    [[kind, ...], ...]: the tensors of one unit
//   units   [[place, first expert or -1, repeated, set], ...]: a unit is a routed expert, the rest of a layer (expert
//           -1), or all tensors of a part outside of the layers; place is the layer's number or the part's name.
//           `repeated` experts follow each other. Tensors are numbered through all units, in the order of their sets.
//   before, after  {"files": [[path, bytes, data start, [skip, tensors, ...]], ...]}: the tensors of a file by offset,
//           adjacent, in runs of consecutive numbers: `skip` from the end of the last run (at first 0), then so many.
//           A run of 0 tensors is a hole of `skip` bytes.
// Threads: pure functions. Errors: unsupported (sizes that JavaScript's numbers cannot hold).
#pragma once

#include <optional>
#include <string>

#include "format/json.h"
#include "reshard/verbs/arrangement.h"

namespace dspack::reshard {

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
