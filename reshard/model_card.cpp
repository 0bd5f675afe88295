#include <fmt/format.h>

#include "reshard/companions.h"

namespace dspack::reshard {

std::string model_card(const format::Manifest& manifest, bool has_source_card) {
  const format::Origin& origin = manifest.origin;
  std::string card;
  if (!origin.repository.empty())
    card += fmt::format("---\nbase_model: {}\nlibrary_name: dspack\n---\n\n", origin.repository);
  card += "# A checkpoint, packed by expert\n\n";
  if (!origin.repository.empty())
    card += fmt::format("Made from `{}`, revision `{}`.\n", origin.repository, origin.revision);
  card += fmt::format(
      "The weights are the source's, byte for byte: {} tensors, {} bytes in {} layers. Every layer has one file with\n"
      "what each token needs and one file for each of its routed experts ({} in all), so that a program can read only\n"
      "what the router picks. All weight files are ordinary safetensors files, listed in `{}`.\n\n",
      manifest.coverage.tensors, manifest.coverage.payload_bytes, manifest.coverage.layers, manifest.coverage.experts,
      format::kIndexPath);
  card += fmt::format("Packed by {} with recipe `{}`.\n\n", manifest.program, format::canonical_json(manifest.recipe));
  card +=
      "## Use\n\n```\ndsrun . -p \"Hello\"\n```\n\nOther loaders open the folder through its index, as any "
      "checkpoint.\n\n";
  card += "## Verify\n\n```\nreshard verify .\nreshard verify . --source SOURCE\n```\n\n";
  card +=
      "The first checks every file and tensor against the digests in `manifest.json`; the second compares every "
      "tensor\n"
      "with the source, byte for byte. The source shards' own headers are kept in `provenance/`.\n";
  if (has_source_card) card += "\nThe source's own card: [README.source.md](README.source.md).\n";
  return card;
}

}  // namespace dspack::reshard
