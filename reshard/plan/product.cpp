#include "reshard/plan/product.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "format/base/size.h"

namespace dspack::reshard {
namespace {

using format::Checkpoint;
using format::TensorEntry;

bool is_mtp(const TensorEntry& tensor, const SourceFacts& facts) {
  if (tensor.place.role == format::Role::mtp) return true;
  return tensor.place.layer && tensor.place.layer->value >= facts.decoder_layers.value();
}

/// Checks that the MTP module is exactly the layers from `decoder_layers` on. With another model's config.json,
/// drop_mtp would leave out half a module, or layers of the decoder.
Result<void> check_mtp(const Checkpoint& source, uint32_t decoder_layers) {
  std::map<LayerId, bool> is_mtp_layer;
  for (const TensorEntry& tensor : source.tensors()) {
    if (!tensor.place.layer) continue;
    // The numbering marks some as MTP layers; one of DeepSeek-V4's stages has only tensors that any layer has.
    const bool is_named = tensor.place.layer->value >= format::kFirstMtpLayer;
    is_mtp_layer[*tensor.place.layer] |= is_named || tensor.place.role == format::Role::mtp;
  }
  for (const auto& [layer, mtp] : is_mtp_layer) {
    if (mtp == (layer.value >= decoder_layers)) continue;
    return Error{ErrorKind::invalid,
                 fmt::format("config.json counts {} layers (num_hidden_layers), but layer {} {}: the MTP module cannot "
                             "be identified; give what to leave out with \"exclude\"",
                             decoder_layers, layer.value,
                             mtp ? "has tensors of an MTP module" : "has no tensor that only an MTP module has")};
  }
  return {};
}

/// Which tensors of the source a recipe takes.
struct Taken {
  std::vector<bool> taken;
  bool complete = true;
  bool drops_mtp = false;  // an MTP module exists and is left out
};

Taken take(const Recipe& recipe, const Checkpoint& source, const SourceFacts& facts) {
  Taken result{std::vector<bool>(source.tensors().size(), false)};
  for (size_t i = 0; i < source.tensors().size(); ++i) {
    const TensorEntry& tensor = source.tensors()[i];
    if (recipe.drop_mtp && is_mtp(tensor, facts)) {
      result.drops_mtp = true;
      continue;
    }
    result.taken[i] = takes(recipe.selection, tensor);
    result.complete = result.complete && result.taken[i];
  }
  return result;
}

/// An FP8 or FP4 weight is unusable without its scale: refuse it now, not when the model runs.
Result<void> check_scales(const Checkpoint& result, const Checkpoint& source) {
  for (const TensorEntry& entry : result.tensors()) {
    const bool is_fp4 = trained_fp4_scales(entry, source) != nullptr;
    if ((entry.dtype != Dtype::f8_e4m3 && !is_fp4) || !entry.name.ends_with(".weight")) continue;
    if (result.find_scale(entry.name) != nullptr) continue;
    if (source.find_scale(entry.name) != nullptr) {
      return Error{ErrorKind::invalid, fmt::format("the recipe takes the {} tensor \"{}\" without its scale; let it "
                                                   "take both or neither",
                                                   is_fp4 ? "FP4" : "FP8", entry.name)};
    }
    const TensorEntry* own = source.find(entry.name);
    return Error{ErrorKind::invalid,
                 fmt::format("{}: FP8 tensor \"{}\" has no scale (\"{}\" is missing); fetch the file that holds it",
                             source.files()[own->file].path, entry.name, format::scale_names(entry.name).front())};
  }
  return {};
}

/// All changes that the transforms make to the taken tensors.
struct Changes {
  std::map<uint32_t, std::vector<Made>> by_tensor;  // replacements of each changed source tensor; empty: removed
  std::vector<bool> applied;                        // per transform: whether it changed anything
};

Result<Changes> changes(const Recipe& recipe, const Checkpoint& source, const SourceFacts& facts,
                        const std::vector<bool>& taken) {
  Changes result{{}, std::vector<bool>(recipe.transforms.size(), false)};
  const KnownOfSource known{.exact_scales = [&](uint32_t scales) { return facts.exact_scales.contains(scales); },
                            .stored = facts.stored};
  for (uint32_t i = 0; i < source.tensors().size(); ++i) {
    if (!taken[i]) continue;
    for (size_t t = 0; t < recipe.transforms.size(); ++t) {
      TRY_ASSIGN(std::optional<Change> change, apply(recipe.transforms[t], i, source, known));
      if (!change) continue;
      result.applied[t] = true;
      for (const uint32_t replaced : change->replaced)
        result.by_tensor[replaced];
      for (Made& made : change->made)
        result.by_tensor[made.of].push_back(std::move(made));
      break;
    }
  }
  return result;
}

constexpr size_t kMaxWarnings = 10;

/// Warnings for parts of the recipe that match nothing in the source: probably mistakes.
std::vector<std::string> idle_parts(const Recipe& recipe, const Checkpoint& source, const std::vector<bool>& applied) {
  std::vector<std::string> warnings;
  const auto look = [&](const std::vector<Selector>& selectors, std::string_view what) {
    for (const Selector& selector : selectors) {
      if (std::ranges::any_of(source.tensors(), [&](const TensorEntry& tensor) { return fits(selector, tensor); }))
        continue;
      warnings.push_back(
          fmt::format("{} {} matches no tensor of the source", what, format::canonical_json(selector_json(selector))));
    }
  };
  look(recipe.selection.include, "include");
  look(recipe.selection.exclude, "exclude");
  for (size_t t = 0; t < applied.size(); ++t) {
    if (applied[t]) continue;
    const Transform& transform = recipe.transforms[t];
    const bool narrows = transform.kind == TransformKind::scales_to_e8m0;
    warnings.push_back(fmt::format("transform {} changes nothing: {}",
                                   format::canonical_json(transform_json(transform)),
                                   narrows ? "no scale tensor has powers of two alone" : "no tensor is of that kind"));
  }
  if (warnings.size() <= kMaxWarnings) return warnings;
  const size_t more = warnings.size() - kMaxWarnings;
  warnings.resize(kMaxWarnings);
  warnings.push_back(fmt::format("{} more parts of the recipe match nothing", more));
  return warnings;
}

/// Maps tensors to the first of their group of equal tensors, which is stored for all. Changed tensors are excluded.
std::map<uint32_t, uint32_t> find_aliases(const Recipe& recipe, const SourceFacts& facts,
                                          const std::vector<bool>& taken, const Changes& changed) {
  std::map<uint32_t, uint32_t> stored;
  if (!recipe.dedupe) return stored;
  for (const std::vector<uint32_t>& group : facts.alike) {
    std::optional<uint32_t> first;
    for (const uint32_t tensor : group) {
      if (!taken[tensor] || changed.by_tensor.contains(tensor)) continue;
      if (first) stored.emplace(tensor, *first);
      if (!first) first = tensor;
    }
  }
  return stored;
}

}  // namespace

Result<Product> make_product(const Recipe& recipe, const Checkpoint& source, const SourceFacts& facts) {
  if (recipe.drop_mtp) TRY(check_mtp(source, facts.decoder_layers.value()));
  const Taken taken = take(recipe, source, facts);
  TRY_ASSIGN(Changes changed, changes(recipe, source, facts, taken.taken));
  Product product;
  product.warnings = idle_parts(recipe, source, changed.applied);
  if (recipe.drop_mtp && !taken.drops_mtp)
    product.warnings.emplace_back("drop_mtp leaves out nothing: the source has no MTP module");
  product.complete = taken.complete;
  const std::map<uint32_t, uint32_t> stored_as = find_aliases(recipe, facts, taken.taken, changed);
  for (const auto& [tensor, stored] : stored_as)
    product.aliases.push_back({tensor, stored});
  std::vector<TensorEntry> result;
  std::vector<bool> used(source.tensors().size(), false);
  for (uint32_t i = 0; i < source.tensors().size(); ++i) {
    const auto change = changed.by_tensor.find(i);
    if (change == changed.by_tensor.end()) {
      if (!taken.taken[i]) continue;
      used[i] = true;
      if (stored_as.contains(i)) continue;
      result.push_back(source.tensors()[i]);
      product.makings.push_back({.source = i});
      continue;
    }
    used[i] = true;
    for (Made& made : change->second) {
      result.push_back(std::move(made.entry));
      for (const uint32_t needed : made.needs)
        used[needed] = true;
      product.makings.push_back({.source = i, .conversion = made.conversion, .needs = std::move(made.needs)});
    }
  }
  if (result.empty()) {
    return Error{ErrorKind::invalid, source.tensors().empty()
                                         ? "the checkpoint holds no tensor"
                                         : "the recipe leaves out every tensor; look at include and exclude "
                                           "(reshard inspect shows layers and roles)"};
  }
  TRY_ASSIGN(product.result, Checkpoint::of(std::move(result)));
  TRY(check_scales(product.result, source));
  for (uint32_t i = 0; i < used.size(); ++i) {
    if (used[i]) product.used.push_back(i);
  }
  return product;
}

}  // namespace dspack::reshard
