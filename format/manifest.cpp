#include "format/manifest.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dspack::format {
namespace {

Json digests_json(const std::vector<Digest>& digests) {
  Json array = Json::array();
  for (const Digest& digest : digests)
    array.push_back(to_hex(digest));
  return array;
}

Json layout_json(const Layout& layout) {
  Json tensors = Json::array();
  for (const LayoutTensor& tensor : layout.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"dtype", to_string(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"data_offsets", {tensor.data.begin, tensor.data.end}}});
  }
  return {{"tensors", std::move(tensors)}};
}

Json file_json(const PackedFile& file) {
  Json json = {{"path", file.path},
               {"part", file.part},
               {"layout", file.layout},
               {"size", file.size_bytes},
               {"data_start", file.data_start},
               {"sha256", to_hex(file.sha256)},
               {"tensors", digests_json(file.tensors)}};
  if (file.layer) json["layer"] = file.layer->value;
  for (const PackedExpert& expert : file.experts) {
    json["experts"].push_back(
        {{"layer", expert.key.layer.value}, {"expert", expert.key.expert.value}, {"sha256", to_hex(expert.digest)}});
  }
  if (file.zstd) {
    json[kZstdKey] = {
        {"size", file.zstd->size_bytes}, {"sha256", to_hex(file.zstd->sha256)}, {"frames", file.zstd->frames}};
  }
  for (const RowBlocks& blocks : file.row_blocks) {
    json["row_blocks"].push_back({{"tensor", blocks.tensor},
                                  {"rows_per_block", blocks.rows_per_block},
                                  {"sha256", digests_json(blocks.digests)}});
  }
  return json;
}

Json stored_file_json(std::string_view path, uint64_t size_bytes, const Digest& digest) {
  return {{"path", path}, {"size", size_bytes}, {"sha256", to_hex(digest)}};
}

Json extension_json(const Extension& extension) {
  return {{"layers", extension.layers},
          {"experts", extension.experts},
          {"tensors", extension.tensors},
          {"payload_bytes", extension.payload_bytes}};
}

Json shard_json(const SourceShard& shard) {
  if (shard.sha256) return stored_file_json(shard.path, shard.size_bytes, *shard.sha256);
  return {{"path", shard.path}, {"size", shard.size_bytes}, {"read", shard.read_bytes}};
}

Json manifest_json(const Manifest& manifest) {
  Json json = {{"format", {{"major", manifest.major}, {"minor", manifest.minor}}},
               {"requires", manifest.requirements},
               {"program", manifest.program},
               {"recipe", manifest.recipe},
               {"plan", manifest.plan},
               {"origin", {{"kind", manifest.origin.kind}}},
               {"coverage", extension_json(manifest.coverage)},
               {"source", Json::array()},
               {"layouts", Json::array()},
               {"files", Json::array()},
               {"companions", Json::array()},
               {kSealKey, ""}};
  if (!manifest.aliases.empty()) json[kAliasesKey] = manifest.aliases;
  if (manifest.layer_map) json[kLayerMapKey] = layer_map_json(*manifest.layer_map);
  if (!manifest.origin.repository.empty()) json["origin"]["repository"] = manifest.origin.repository;
  if (!manifest.origin.revision.empty()) json["origin"]["revision"] = manifest.origin.revision;
  if (manifest.coverage.of) json["coverage"]["of"] = extension_json(*manifest.coverage.of);
  if (!manifest.rounding_errors.is_null()) json["rounding_errors"] = manifest.rounding_errors;
  for (const SourceShard& shard : manifest.source)
    json["source"].push_back(shard_json(shard));
  for (const Layout& layout : manifest.layouts)
    json["layouts"].push_back(layout_json(layout));
  for (const PackedFile& file : manifest.files)
    json["files"].push_back(file_json(file));
  for (const CompanionFile& file : manifest.companions) {
    json["companions"].push_back(stored_file_json(file.path, file.size_bytes, file.sha256));
  }
  return json;
}

}  // namespace

std::string write_manifest(const Manifest& manifest) {
  Json json = manifest_json(manifest);
  json[kSealKey] = to_hex(sha256(canonical_json(json)));
  return canonical_json(json) + "\n";
}

StoredFile stored_file(const PackedFile& file) {
  if (!file.zstd) return {file.path, file.size_bytes, file.sha256};
  return {std::string(file.path).append(kCompressedSuffix), file.zstd->size_bytes, file.zstd->sha256};
}

std::vector<uint64_t> frame_cuts(const PackedFile& file, const Layout& layout) {
  std::vector<uint64_t> begins;
  for (const LayoutTensor& tensor : layout.tensors)
    begins.push_back(file.data_start + tensor.data.begin);
  return frame_cuts(begins, file.size_bytes);
}

bool has_requirement(const Manifest& manifest, std::string_view name) {
  return std::ranges::find(manifest.requirements, name) != manifest.requirements.end();
}

std::string tensor_name(const PackedFile& file, const LayoutTensor& tensor) {
  if (!file.layer) return tensor.name;
  const std::optional<size_t> entry = template_entry(tensor.name);
  if (!entry) return expand_template(tensor.name, file.layer, {});
  DSPACK_CHECK(*entry < file.experts.size(), "a layout's expert that the file does not list");
  return expand_template(tensor.name, file.layer, file.experts[*entry].key.expert);
}

bool holds_source_bytes(const Manifest& manifest) {
  return !manifest.recipe.contains("transform") && !manifest.recipe.contains("drop_mtp") && !manifest.coverage.of;
}

std::optional<size_t> find_expert(const PackedFile& file, ExpertKey key) {
  const auto found = std::lower_bound(file.experts.begin(), file.experts.end(), key,
                                      [](const PackedExpert& expert, ExpertKey wanted) { return expert.key < wanted; });
  if (found == file.experts.end() || found->key != key) return std::nullopt;
  return static_cast<size_t>(found - file.experts.begin());
}

Digest expert_digest(std::vector<NamedDigest> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const NamedDigest& a, const NamedDigest& b) { return a.name < b.name; });
  std::string text;
  for (const NamedDigest& tensor : tensors) {
    text += fmt::format("{} {} [{}] {}\n", tensor.name, to_string(tensor.dtype), fmt::join(tensor.shape, ","),
                        to_hex(tensor.digest));
  }
  return sha256(text);
}

}  // namespace dspack::format
