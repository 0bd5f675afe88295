// The product of a recipe: which tensors the packed repository will hold, and from which source tensor each is made.
// The step between a catalogue and the layout of files.
// Threads: pure functions of plain values. Lifetime: refers to the source's catalogue by index; keep both together.
// Errors: invalid (no tensor is left, a missing scale, an MTP module that cannot be identified), unsupported (a
// transform that does not fit).
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "format/checkpoint.h"
#include "reshard/plan/recipe.h"
#include "reshard/plan/transform.h"

namespace dspack::reshard {

/// Facts about a source, beyond its headers, that a recipe may need. Only needed facts are looked up.
struct SourceFacts {
  std::optional<uint32_t> decoder_layers{};    // without the MTP module's layers; for drop_mtp
  std::vector<std::vector<uint32_t>> alike{};  // groups of probably equal tensors; for dedupe
  format::Quantization stored{};               // quantisation described by config.json; for transforms that decode
  std::set<uint32_t> exact_scales{};           // scale tensors whose values are all powers of two; for scales_to_e8m0
};

/// How a tensor of the result is made.
struct Making {
  uint32_t source = 0;  // catalogue index of the source tensor that it is made from
  Conversion conversion = Conversion::none;
  std::vector<uint32_t> needs{};  // as in Made
};

/// A source tensor that is stored under another tensor's name; their bytes must turn out to be equal.
struct Alias {
  uint32_t tensor = 0;  // catalogue indices
  uint32_t stored = 0;
};

struct Product {
  format::Checkpoint result;    // what the repository holds: names, dtypes, shapes, sizes
  std::vector<Making> makings;  // parallel to the tensors of `result`
  std::vector<uint32_t> used;   // source tensors that contribute to the result in any way, ascending
  std::vector<Alias> aliases;
  bool complete = true;               // no tensor is left out except a dropped MTP module's
  std::vector<std::string> warnings;  // parts of the recipe that match no tensor
};

[[nodiscard]] Result<Product> make_product(const Recipe& recipe, const format::Checkpoint& source,
                                           const SourceFacts& facts);

}  // namespace dspack::reshard
