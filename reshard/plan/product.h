// The product of a recipe: which tensors the packed repository is to hold, and of which tensor of the source each is
// made. The step between a catalogue and the layout of files.
// Threads: pure functions of plain values. Lifetime: refers to the source's catalogue by index; keep both together.
// Errors: invalid (nothing is left, a scale that would be missing, equal tensors that are not alike), unsupported (a
// transform that does not fit).
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "format/checkpoint.h"
#include "reshard/plan/recipe.h"
#include "reshard/plan/transform.h"

namespace dspack::reshard {

/// What a recipe may need to know of a source beyond its headers. What is not needed is not looked up.
struct SourceFacts {
  std::optional<uint32_t> decoder_layers{};    // without the MTP module's; for drop_mtp
  std::vector<std::vector<uint32_t>> alike{};  // tensors that are probably equal, in groups; for dedupe
  format::Quantization stored{};               // what config.json says of codes; for transforms that decode
  std::set<uint32_t> exact_scales{};           // scale tensors whose values are all powers of two; for scales_to_e8m0
};

/// How a tensor of the result comes about.
struct Making {
  uint32_t source = 0;  // catalogue index of the tensor that it is made of
  Conversion conversion = Conversion::none;
  std::vector<uint32_t> needs{};  // as in Made
};

/// A tensor of the source that is stored as another one, whose bytes must turn out to be the same.
struct Alias {
  uint32_t tensor = 0;  // catalogue indices
  uint32_t stored = 0;
};

struct Product {
  format::Checkpoint result;    // what the repository holds: names, dtypes, shapes, sizes
  std::vector<Making> makings;  // of each of its tensors
  std::vector<uint32_t> used;   // source tensors that become part of it in whatever way, ascending
  std::vector<Alias> aliases;
  bool complete = true;               // no tensor is left out, other than those of a dropped MTP module
  std::vector<std::string> warnings;  // parts of the recipe that concern no tensor
};

[[nodiscard]] Result<Product> make_product(const Recipe& recipe, const format::Checkpoint& source,
                                           const SourceFacts& facts);

}  // namespace dspack::reshard
