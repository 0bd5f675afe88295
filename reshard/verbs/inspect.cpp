#include "reshard/verbs/inspect.h"

#include <map>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/json.h"
#include "reshard/run/other_loaders.h"

namespace dspack::reshard {
namespace {

constexpr size_t kRecipeBytes = 2000;  // shown of a recipe, which may list every layer and expert

struct Total {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  void add(const format::TensorEntry& tensor) {
    ++tensors;
    bytes += tensor.range.size();
  }
};

struct LayerTotal {
  Total dense;
  Total routed;
  uint64_t experts = 0;
};

std::string row(std::string_view name, const Total& total) {
  return fmt::format("  {:<16}{:>10}{:>20}\n", name, total.tensors, total.bytes);
}

/// What a recipe has made of its source, where that is not the same model in other files.
std::string changes_text(const format::Manifest& manifest) {
  if (holds_source_bytes(manifest)) return {};
  std::string text =
      fmt::format("recipe: {}\n", shortened(printable(format::canonical_json(manifest.recipe)), kRecipeBytes));
  if (const auto& of = manifest.coverage.of) {
    text += fmt::format("part of a source of {} tensors, {} payload bytes, {} layers, {} routed experts\n", of->tensors,
                        of->payload_bytes, of->layers, of->experts);
  }
  if (!manifest.rounding_errors.is_null()) {
    text += fmt::format("\n  {:<16}{:>10}{:>20}  {}\n", "rounded", "tensors", "relative RMS", "worst");
    for (const auto& [role, errors] : manifest.rounding_errors.items()) {
      const format::Json& worst = errors["worst"];
      text += fmt::format("  {:<16}{:>10}{:>20.3e}  {:.3e} {}\n", brief(role), errors["tensors"].get<uint64_t>(),
                          errors["relative_rms"].get<double>(), worst["relative_rms"].get<double>(),
                          brief(worst["name"].get_ref<const std::string&>()));
    }
  }
  return text + "\n";
}

/// What other programs make of it.
std::string others_text(const format::Manifest& manifest) {
  std::string text;
  if (const auto reason = unreadable_reason(manifest))
    text += fmt::format("other programs cannot read it: {}; reshard unpack makes an ordinary checkpoint\n\n",
                        brief(*reason));
  if (const std::string_view readers = readers_of_names(name_author(manifest)); !readers.empty())
    text += fmt::format("{}\n\n", readers);
  return text;
}

}  // namespace

std::string inspect_text(const format::Checkpoint& checkpoint, const format::Repository& repository) {
  std::map<std::string_view, Total> roles;
  std::map<std::string_view, Total> dtypes;
  std::map<LayerId, LayerTotal> layers;
  Total all;
  for (const format::TensorEntry& tensor : checkpoint.tensors()) {
    all.add(tensor);
    roles[to_string(tensor.place.role)].add(tensor);
    dtypes[to_string(tensor.dtype)].add(tensor);
    if (tensor.place.layer)
      (tensor.place.expert ? layers[*tensor.place.layer].routed : layers[*tensor.place.layer].dense).add(tensor);
  }
  for (const auto& [key, tensors] : checkpoint.experts())
    ++layers[key.layer].experts;

  std::string text =
      fmt::format("{}\n{}: {} files, {} tensors, {} payload bytes, {} layers, {} routed experts\n\n",
                  brief(repository.description()), checkpoint.manifest() ? "packed repository" : "checkpoint",
                  checkpoint.files().size(), all.tensors, all.bytes, layers.size(), checkpoint.experts().size());
  uint64_t slices = 0;
  for (const format::FusedTensor& tensor : checkpoint.fused())
    slices += tensor.slices;
  if (checkpoint.manifest()) text += changes_text(*checkpoint.manifest()) + others_text(*checkpoint.manifest());
  if (checkpoint.manifest() && checkpoint.manifest()->layer_map) {
    const format::LayerMap& map = *checkpoint.manifest()->layer_map;
    text += fmt::format("layer map: {} ({} in all)\n\n", format::to_string(map), map.size());
  }
  if (!checkpoint.fused().empty()) {
    text += fmt::format(
        "{} tensors hold all experts of their layer and are seen as {}, one an expert. So they are packed, and other "
        "programs then need what reshard unpack makes of it\n\n",
        checkpoint.fused().size(), slices);
  }
  text += fmt::format("  {:<16}{:>10}{:>20}\n", "role", "tensors", "bytes");
  for (const auto& [role, total] : roles)
    text += row(role, total);
  text += fmt::format("\n  {:<16}{:>10}{:>20}\n", "dtype", "tensors", "bytes");
  for (const auto& [dtype, total] : dtypes)
    text += row(dtype, total);
  text += fmt::format("\n  {:<8}{:>10}{:>20}{:>10}{:>20}\n", "layer", "tensors", "bytes", "experts", "expert bytes");
  for (const auto& [layer, total] : layers) {
    text += fmt::format("  {:<8}{:>10}{:>20}{:>10}{:>20}\n", format::layer_text(layer),
                        total.dense.tensors + total.routed.tensors, total.dense.bytes + total.routed.bytes,
                        total.experts, total.routed.bytes);
  }
  return text;
}

std::string inspect_json(const format::Checkpoint& checkpoint, const format::Repository& repository) {
  std::vector<std::string> places;
  for (const format::CheckpointFile& file : checkpoint.files())
    places.push_back(repository.locate(file.path));
  std::string text;
  for (const format::TensorEntry& tensor : checkpoint.tensors()) {
    const std::string& where = places[tensor.file];
    const char* place = where.find("://") == std::string::npos ? "file" : "url";
    const format::Json line = {{"name", tensor.name},
                               {"dtype", to_string(tensor.dtype)},
                               {"shape", tensor.shape},
                               {place, where},
                               {"range", {tensor.range.begin, tensor.range.end}}};
    text += format::canonical_json(line) + "\n";
  }
  return text;
}

}  // namespace dspack::reshard
