#include <fmt/format.h>

#include "reshard/companions.h"

namespace dspack::reshard {

namespace {

/// What the weight files are, in words.
std::string files_of(const Grouping& grouping, uint64_t experts) {
  constexpr char kDense[] = "Every layer has one file with what each token needs";
  switch (grouping.kind) {
    case Grouping::Kind::expert:
      if (grouping.experts_per_file == 1)
        return fmt::format("{} and one for each of its routed experts ({} in all)", kDense, experts);
      return fmt::format("{} and one for every {} of its routed experts ({} in all)", kDense, grouping.experts_per_file,
                         experts);
    case Grouping::Kind::layer: return fmt::format("{} and one for its routed experts ({} in all)", kDense, experts);
    case Grouping::Kind::shard:
      return fmt::format(
          "They lie in the model's order in files of up to {} bytes, and none of its {} routed experts is parted",
          grouping.shard_bytes, experts);
  }
  return {};
}

/// What the tensors are, compared with the source's.
std::string weights_of(const format::Manifest& manifest) {
  const format::Coverage& coverage = manifest.coverage;
  const std::string here =
      fmt::format("{} tensors, {} bytes in {} layers", coverage.tensors, coverage.payload_bytes, coverage.layers);
  if (holds_source_bytes(manifest)) return fmt::format("The weights are the source's, byte for byte: {}.\n", here);
  std::string text = fmt::format("The weights are what the recipe below makes of the source's: {}", here);
  if (const auto& of = coverage.of) text += fmt::format(", of its {} tensors in {} layers", of->tensors, of->layers);
  text += ".\n";
  if (!manifest.rounding_errors.is_null())
    text += "What rounding has cost is in the manifest's field `rounding_errors`.\n";
  return text;
}

}  // namespace

std::string model_card(const format::Manifest& manifest, const Recipe& recipe, bool has_source_card) {
  const format::Origin& origin = manifest.origin;
  std::string card;
  if (!origin.repository.empty())
    card += fmt::format("---\nbase_model: {}\nlibrary_name: dspack\n---\n\n", origin.repository);
  card += "# A packed checkpoint\n\n";
  if (!origin.repository.empty())
    card += fmt::format("Made from `{}`, revision `{}`.\n", origin.repository, origin.revision);
  card += fmt::format(
      "{}"
      "{}.\n"
      "The manifest tells where each expert lies, so that a program can read only what the router picks.\n"
      "All weight files are ordinary safetensors files, listed in `{}`.\n\n",
      weights_of(manifest), files_of(recipe.by, manifest.coverage.experts), format::kIndexPath);
  card += fmt::format("Packed by {} with recipe `{}`.\n\n", manifest.program, format::canonical_json(manifest.recipe));
  if (manifest.layer_map) {
    card += fmt::format(
        "Layer map: `dsrun` passes the layers in the order {}. Each is stored once. Other loaders know\n"
        "nothing of the map and run the model that the source is.\n\n",
        format::to_string(*manifest.layer_map));
  }
  card += "## Use\n\n```\ndsrun . -p \"Hello\"\n```\n\n";
  card += manifest.coverage.of ? "Other loaders need the whole model, of which this is a part.\n\n"
                               : "Other loaders open the folder through its index, as any checkpoint.\n\n";
  card += "## Verify\n\n```\nreshard verify .\nreshard verify . --source SOURCE\n```\n\n";
  card +=
      "The first checks every file and tensor against the digests in `manifest.json`; the second compares every "
      "tensor\n"
      "with what the recipe makes of the source, byte for byte. The source shards' own headers are kept in "
      "`provenance/`.\n";
  if (has_source_card) card += "\nThe source's own card: [README.source.md](README.source.md).\n";
  return card;
}

}  // namespace dspack::reshard
