#include "format/manifest.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/base/size.h"
#include "format/file_system.h"
#include "format/safetensors.h"

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

// The reader: everything in a manifest is untrusted, and checked before use.

// Requirements beyond the plain format that this version supports.
const std::set<std::string> kKnownRequirements{kLayerMapKey, kAliasesKey, kZstdKey, kNameFamiliesKey, kFusedExpertsKey};

Result<Digest> read_digest(const Json& object, std::string_view key) {
  TRY_ASSIGN(const std::string hex, json_string(object, key));
  const std::optional<Digest> digest = parse_digest(hex);
  if (!digest) return invalid(fmt::format("\"{}\" is not a SHA-256 in lower-case hex", key));
  return *digest;
}

Result<std::vector<Digest>> read_digests(const Json& object, std::string_view key) {
  TRY_ASSIGN(const Json* array, json_array(object, key));
  std::vector<Digest> digests;
  for (const Json& hex : *array) {
    const std::optional<Digest> digest = hex.is_string() ? parse_digest(hex.get<std::string>()) : std::nullopt;
    if (!digest) return invalid(fmt::format("\"{}\" has an entry that is no SHA-256", key));
    digests.push_back(*digest);
  }
  return digests;
}

/// A file's path. The manifest's own is refused: no other file may take its place.
Result<std::string> read_path(const Json& object) {
  TRY_ASSIGN(std::string path, json_string(object, "path"));
  if (const auto reason = unsafe_path_reason(path))
    return invalid(fmt::format("path \"{}\" refused: {}", path, *reason));
  if (path == kManifestPath) return invalid(fmt::format("path \"{}\" refused: it is the manifest's own", path));
  return path;
}

/// Paths within one folder: each once, and none both a file and a folder.
class Paths {
 public:
  Result<void> claim(const std::string& path) {
    if (!files_.insert(path).second) return invalid(fmt::format("{} is listed twice", path));
    if (folders_.contains(path)) return invalid(fmt::format("{} is listed as a file and as a folder", path));
    for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
      const auto [folder, added] = folders_.insert(path.substr(0, slash));
      if (added && files_.contains(*folder))
        return invalid(fmt::format("{} is listed as a file and as a folder", *folder));
    }
    return {};
  }

 private:
  std::set<std::string> files_;
  std::set<std::string> folders_;
};

/// Sizes, whose sum must not overflow.
class Sizes {
 public:
  Result<void> add(const std::string& path, uint64_t bytes) {
    const std::optional<uint64_t> total = checked_add(total_, bytes);
    if (!total || *total > kMaxSizeBytes)
      return invalid(fmt::format("{}: claims {} bytes, which is no size of a file", path, bytes));
    total_ = *total;
    return {};
  }

 private:
  uint64_t total_ = 0;
};

Result<Layout> read_layout(const Json& json) {
  if (!json.is_object()) return invalid("a layout is not an object");
  TRY_ASSIGN(const Json* tensors, json_array(json, "tensors"));
  Layout layout;
  uint64_t end = 0;
  for (const Json& entry : *tensors) {
    if (!entry.is_object()) return invalid("a layout's tensor is not an object");
    LayoutTensor tensor;
    TRY_ASSIGN(tensor.name, json_string(entry, "name"));
    if (tensor.name == kMetadataKey) return invalid(fmt::format("\"{}\" is no name of a tensor", tensor.name));
    TRY_ASSIGN(const std::string dtype_name, json_string(entry, "dtype"));
    const std::optional<Dtype> dtype = parse_dtype(dtype_name);
    if (!dtype) return invalid(fmt::format("tensor \"{}\" has the unknown dtype \"{}\"", tensor.name, dtype_name));
    tensor.dtype = *dtype;
    for (const std::string_view key : {"shape", "data_offsets"}) {
      TRY_ASSIGN(const Json* numbers, json_array(entry, key));
      if (std::any_of(numbers->begin(), numbers->end(), [](const Json& n) { return !n.is_number_unsigned(); })) {
        return invalid(fmt::format("tensor \"{}\": \"{}\" has an entry that is no size", tensor.name, key));
      }
    }
    tensor.shape = entry["shape"].get<std::vector<uint64_t>>();
    const auto offsets = entry["data_offsets"].get<std::vector<uint64_t>>();
    const std::optional<uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (offsets.size() != 2 || offsets[0] != end || !bytes || checked_add(end, *bytes) != offsets[1]) {
      return invalid(fmt::format("tensor \"{}\": its offsets do not follow from its shape and place", tensor.name));
    }
    end = offsets[1];
    tensor.data = {offsets[0], offsets[1]};
    layout.tensors.push_back(std::move(tensor));
  }
  return layout;
}

Result<RowBlocks> read_row_blocks(const Json& json, const Layout& layout) {
  if (!json.is_object()) return invalid("an entry of \"row_blocks\" is not an object");
  RowBlocks blocks;
  TRY_ASSIGN(blocks.tensor, json_uint(json, "tensor"));
  TRY_ASSIGN(blocks.rows_per_block, json_uint(json, "rows_per_block"));
  TRY_ASSIGN(blocks.digests, read_digests(json, "sha256"));
  if (blocks.tensor >= layout.tensors.size())
    return invalid(fmt::format("\"row_blocks\" is of tensor {}, which its layout lacks", blocks.tensor));
  const LayoutTensor& tensor = layout.tensors[blocks.tensor];
  const uint64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0];
  if (rows == 0 || tensor.data.size() == 0 || tensor.data.size() % rows != 0)
    return invalid(fmt::format("\"row_blocks\" is of tensor \"{}\", whose rows are not whole bytes", tensor.name));
  // A block may be longer than the tensor: writers choose its rows by the size of a row alone.
  const std::optional<uint64_t> block_bytes = checked_mul(tensor.data.size() / rows, blocks.rows_per_block);
  if (!block_bytes || *block_bytes == 0 || *block_bytes > kMaxSizeBytes)
    return invalid(
        fmt::format("tensor \"{}\": {} is no number of rows in a block", tensor.name, blocks.rows_per_block));
  if (const uint64_t count = ceil_div(rows, blocks.rows_per_block); blocks.digests.size() != count) {
    return invalid(fmt::format("tensor \"{}\": {} digests of row blocks where its {} rows make {}", tensor.name,
                               blocks.digests.size(), rows, count));
  }
  return blocks;
}

Result<uint32_t> read_id(const Json& json, std::string_view key) {
  TRY_ASSIGN(const uint64_t value, json_uint(json, key));
  if (value > kMaxId) return invalid(fmt::format("\"{}\" is {}: out of range", key, value));
  return static_cast<uint32_t>(value);
}

/// The experts of a file whose path and layer have been read.
Result<std::vector<PackedExpert>> read_experts(const Json& json, const PackedFile& file) {
  TRY_ASSIGN(const Json* entries, json_array(json, "experts"));
  std::vector<PackedExpert> experts;
  for (const Json& entry : *entries) {
    if (!entry.is_object()) return invalid(fmt::format("{}: an entry of \"experts\" is not an object", file.path));
    PackedExpert expert;
    TRY_ASSIGN(const uint32_t layer, read_id(entry, "layer"));
    TRY_ASSIGN(const uint32_t id, read_id(entry, "expert"));
    expert.key = {LayerId(layer), ExpertId(id)};
    TRY_ASSIGN(expert.digest, read_digest(entry, "sha256"));
    if (file.layer && *file.layer != expert.key.layer)
      return invalid(fmt::format("{}: its expert {} is of layer {}, not its own", file.path, id, layer));
    if (!experts.empty() && experts.back().key >= expert.key)
      return invalid(fmt::format("{}: its experts do not ascend at layer {}, expert {}", file.path, layer, id));
    experts.push_back(expert);
  }
  return experts;
}

/// A layout, and the experts that its templates require of a file.
struct KnownLayout {
  const Layout& layout;
  std::optional<size_t> last_entry;  // the largest K of its "{expert[K]}"
};

KnownLayout known(const Layout& layout) {
  KnownLayout result{layout, {}};
  for (const LayoutTensor& tensor : layout.tensors)
    result.last_entry = std::max(result.last_entry, template_entry(tensor.name));
  return result;
}

Result<CompressedForm> read_compressed(const Json& json, const PackedFile& file, const Layout& layout) {
  CompressedForm form;
  TRY_ASSIGN(form.size_bytes, json_uint(json, "size"));
  TRY_ASSIGN(form.sha256, read_digest(json, "sha256"));
  TRY_ASSIGN(const Json* frames, json_array(json, "frames"));
  for (const Json& bytes : *frames) {
    if (!bytes.is_number_unsigned() || bytes.get<uint64_t>() > 2 * kMaxFrameBytes)
      return invalid("\"frames\" has an entry that is no size of a frame");
    form.frames.push_back(bytes.get<uint32_t>());
  }
  if (file.size_bytes / kMaxFrameBytes > form.frames.size())  // else cutting a made-up size would exhaust memory
    return invalid(fmt::format("lists {} compressed frames for {} bytes", form.frames.size(), file.size_bytes));
  TRY(frame_table(frame_cuts(file, layout), form));
  return form;
}

Result<PackedFile> read_file(const Json& json, const std::vector<KnownLayout>& layouts) {
  if (!json.is_object()) return invalid("an entry of \"files\" is not an object");
  PackedFile file;
  TRY_ASSIGN(file.path, read_path(json));
  TRY_ASSIGN(file.part, json_string(json, "part"));
  if (json.contains("layer")) {
    TRY_ASSIGN(const uint32_t layer, read_id(json, "layer"));
    file.layer = LayerId(layer);
  }
  if (json.contains("experts")) {
    TRY_ASSIGN(file.experts, read_experts(json, file));
  }
  TRY_ASSIGN(file.layout, json_uint(json, "layout"));
  TRY_ASSIGN(file.size_bytes, json_uint(json, "size"));
  TRY_ASSIGN(file.data_start, json_uint(json, "data_start"));
  TRY_ASSIGN(file.sha256, read_digest(json, "sha256"));
  TRY_ASSIGN(file.tensors, read_digests(json, "tensors"));
  if (file.layout >= layouts.size())
    return invalid(fmt::format("{}: layout {} does not exist", file.path, file.layout));
  const auto& [layout, last_entry] = layouts[file.layout];
  if (file.layer && last_entry && *last_entry >= file.experts.size()) {
    return invalid(
        fmt::format("{}: its layout names expert [{}], it lists {}", file.path, *last_entry, file.experts.size()));
  }
  const uint64_t payload = layout.tensors.empty() ? 0 : layout.tensors.back().data.end;
  // The header's length, in 8 bytes, and the header precede the data.
  if (file.data_start <= 8 || file.data_start - 8 > kMaxHeaderBytes)
    return invalid(fmt::format("{}: its data cannot begin at {}", file.path, file.data_start));
  if (file.tensors.size() != layout.tensors.size() || checked_add(file.data_start, payload) != file.size_bytes) {
    return invalid(fmt::format("{}: its size or tensors do not fit its layout", file.path));
  }
  if (json.contains(kZstdKey)) {
    TRY_ASSIGN(const Json* zstd, json_object(json, kZstdKey));
    auto form = read_compressed(*zstd, file, layout);
    if (!form) return form.error().in(file.path);
    file.zstd = std::move(*form);
  }
  if (json.contains("row_blocks")) {
    TRY_ASSIGN(const Json* entries, json_array(json, "row_blocks"));
    std::set<uint64_t> with_blocks;
    for (const Json& entry : *entries) {
      auto blocks = read_row_blocks(entry, layout);
      if (!blocks) return blocks.error().in(file.path);
      if (!with_blocks.insert(blocks->tensor).second)
        return invalid(fmt::format("{}: has row blocks of tensor {} twice", file.path, blocks->tensor));
      file.row_blocks.push_back(*std::move(blocks));
    }
    std::ranges::sort(file.row_blocks, {}, &RowBlocks::tensor);
  }
  return file;
}

Result<CompanionFile> read_companion(const Json& json) {
  if (!json.is_object()) return invalid("an entry of \"companions\" is not an object");
  CompanionFile file;
  TRY_ASSIGN(file.path, read_path(json));
  TRY_ASSIGN(file.size_bytes, json_uint(json, "size"));
  TRY_ASSIGN(file.sha256, read_digest(json, "sha256"));
  return file;
}

Result<SourceShard> read_shard(const Json& json) {
  if (!json.is_object()) return invalid("an entry of \"source\" is not an object");
  SourceShard shard;
  TRY_ASSIGN(shard.path, read_path(json));
  TRY_ASSIGN(shard.size_bytes, json_uint(json, "size"));
  if (json.contains("sha256")) {
    TRY_ASSIGN(shard.sha256, read_digest(json, "sha256"));
    return shard;
  }
  TRY_ASSIGN(shard.read_bytes, json_uint(json, "read"));
  if (shard.read_bytes > shard.size_bytes) {
    return invalid(fmt::format("{}: {} bytes were read of {}", shard.path, shard.read_bytes, shard.size_bytes));
  }
  return shard;
}

Result<Extension> read_extension(const Json& json) {
  Extension extension;
  TRY_ASSIGN(extension.layers, json_uint(json, "layers"));
  TRY_ASSIGN(extension.experts, json_uint(json, "experts"));
  TRY_ASSIGN(extension.tensors, json_uint(json, "tensors"));
  TRY_ASSIGN(extension.payload_bytes, json_uint(json, "payload_bytes"));
  return extension;
}

Result<double> read_error(const Json& json) {
  const auto value = json.find("relative_rms");
  if (value != json.end() && value->is_number() && value->get<double>() >= 0) return value->get<double>();
  return invalid("\"relative_rms\" is missing or no number from 0");
}

/// Checks rounding errors and returns them unchanged: they are for people.
Result<Json> read_rounding_errors(const Json& json) {
  TRY_ASSIGN(const Json* roles, json_object(json, "rounding_errors"));
  for (const auto& [role, errors] : roles->items()) {
    const auto checked = [&errors = errors]() -> Result<void> {
      if (!errors.is_object()) return invalid("is no object");
      TRY(json_uint(errors, "tensors"));
      TRY(read_error(errors));
      TRY_ASSIGN(const Json* worst, json_object(errors, "worst"));
      TRY(json_string(*worst, "name"));
      TRY(read_error(*worst));
      if (!errors.contains("worst_expert")) return {};
      TRY_ASSIGN(const Json* expert, json_object(errors, "worst_expert"));
      TRY(json_uint(*expert, "layer"));
      TRY(json_uint(*expert, "expert"));
      TRY(read_error(*expert));
      return {};
    }();
    if (!checked) return checked.error().in(fmt::format("\"rounding_errors\" of \"{}\"", role));
  }
  return *roles;
}

Result<void> read_format(const Json& json, Manifest& manifest) {
  TRY_ASSIGN(const Json* format, json_object(json, "format"));
  TRY_ASSIGN(manifest.major, json_uint(*format, "major"));
  TRY_ASSIGN(manifest.minor, json_uint(*format, "minor"));
  if (manifest.major != 1) {
    return Error{ErrorKind::unsupported,
                 fmt::format("format version {}.{}: this program reads version 1", manifest.major, manifest.minor)};
  }
  TRY_ASSIGN(const Json* requirements, json_array(json, "requires"));
  std::vector<std::string> unknown;
  for (const Json& name : *requirements) {
    if (!name.is_string()) return invalid("\"requires\" has an entry that is no string");
    manifest.requirements.push_back(name.get<std::string>());
    if (!kKnownRequirements.contains(manifest.requirements.back())) unknown.push_back(manifest.requirements.back());
  }
  if (!unknown.empty()) {
    return Error{ErrorKind::unsupported,
                 fmt::format("needs {}, which this version cannot read: use a newer dspack", fmt::join(unknown, ", "))};
  }
  return {};
}

/// A reader that ignored the map would run another model: field and requirement must come together.
Result<void> read_layer_map(const Json& json, Manifest& manifest) {
  const bool required = has_requirement(manifest, kLayerMapKey);
  if (required != json.contains(kLayerMapKey)) {
    return invalid(fmt::format(R"(one of the field "{0}" and the requirement "{0}" lacks the other)", kLayerMapKey));
  }
  if (!required) return {};
  auto map = layer_map_of(json[kLayerMapKey]);
  if (!map) return map.error().in(kLayerMapKey);
  manifest.layer_map = std::move(*map);
  return {};
}

/// As read_layer_map: a reader that ignored aliases would miss tensors.
Result<void> read_aliases(const Json& json, Manifest& manifest) {
  const bool required = std::ranges::find(manifest.requirements, kAliasesKey) != manifest.requirements.end();
  if (required != json.contains(kAliasesKey)) {
    return invalid(fmt::format(R"(one of the field "{0}" and the requirement "{0}" lacks the other)", kAliasesKey));
  }
  if (!required) return {};
  TRY_ASSIGN(const Json* aliases, json_object(json, kAliasesKey));
  for (const auto& [name, target] : aliases->items()) {
    if (!target.is_string()) return invalid(fmt::format("alias \"{}\" stands for no name", name));
    manifest.aliases.emplace(name, target.get<std::string>());
  }
  return {};
}

Result<void> read_provenance(const Json& json, Manifest& manifest) {
  TRY_ASSIGN(manifest.program, json_string(json, "program"));
  TRY_ASSIGN(const Json* recipe, json_object(json, "recipe"));
  manifest.recipe = *recipe;
  TRY_ASSIGN(manifest.plan, json_string(json, "plan"));
  TRY_ASSIGN(const Json* origin, json_object(json, "origin"));
  TRY_ASSIGN(manifest.origin.kind, json_string(*origin, "kind"));
  if (origin->contains("repository")) {
    TRY_ASSIGN(manifest.origin.repository, json_string(*origin, "repository"));
  }
  if (origin->contains("revision")) {
    TRY_ASSIGN(manifest.origin.revision, json_string(*origin, "revision"));
  }
  TRY_ASSIGN(const Json* coverage, json_object(json, "coverage"));
  TRY_ASSIGN(static_cast<Extension&>(manifest.coverage), read_extension(*coverage));
  if (coverage->contains("of")) {
    TRY_ASSIGN(const Json* of, json_object(*coverage, "of"));
    TRY_ASSIGN(manifest.coverage.of, read_extension(*of));
  }
  if (json.contains("rounding_errors")) {
    TRY_ASSIGN(manifest.rounding_errors, read_rounding_errors(json));
  }
  TRY_ASSIGN(const Json* source, json_array(json, "source"));
  Paths paths;
  Sizes sizes;
  for (const Json& entry : *source) {
    TRY_ASSIGN(SourceShard shard, read_shard(entry));
    TRY(paths.claim(shard.path));
    TRY(sizes.add(shard.path, shard.size_bytes));
    manifest.source.push_back(std::move(shard));
  }
  return {};
}

Result<void> read_files(const Json& json, Manifest& manifest) {
  TRY_ASSIGN(const Json* layouts, json_array(json, "layouts"));
  for (const Json& entry : *layouts) {
    TRY_ASSIGN(Layout layout, read_layout(entry));
    manifest.layouts.push_back(std::move(layout));
  }
  Paths paths;
  Sizes sizes;
  std::vector<KnownLayout> known_layouts;
  for (const Layout& layout : manifest.layouts)
    known_layouts.push_back(known(layout));
  std::set<ExpertKey> experts;
  TRY_ASSIGN(const Json* files, json_array(json, "files"));
  for (const Json& entry : *files) {
    TRY_ASSIGN(PackedFile file, read_file(entry, known_layouts));
    TRY(paths.claim(stored_file(file).path));
    TRY(sizes.add(file.path, file.size_bytes));
    if (file.zstd) {
      TRY(paths.claim(file.path));  // readers ask for it by this path
      TRY(sizes.add(file.path, file.zstd->size_bytes));
    }
    for (const PackedExpert& expert : file.experts) {
      if (experts.insert(expert.key).second) continue;
      return invalid(fmt::format("{}: layer {}, expert {} is in another file too", file.path,
                                 layer_text(expert.key.layer), expert.key.expert.value));
    }
    manifest.files.push_back(std::move(file));
  }
  TRY_ASSIGN(const Json* companions, json_array(json, "companions"));
  for (const Json& entry : *companions) {
    TRY_ASSIGN(CompanionFile file, read_companion(entry));
    TRY(paths.claim(file.path));
    TRY(sizes.add(file.path, file.size_bytes));
    manifest.companions.push_back(std::move(file));
  }
  return {};
}

/// Claims no more than the files hold, plus what aliases repeat. Precondition: layouts and sizes are checked.
Result<void> check_coverage(const Manifest& manifest) {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  for (const PackedFile& file : manifest.files) {
    tensors += manifest.layouts[file.layout].tensors.size();
    bytes += file.size_bytes - file.data_start;
  }
  const uint64_t aliases = manifest.aliases.size();
  const Coverage& coverage = manifest.coverage;
  const std::optional<uint64_t> most_bytes = checked_mul(bytes, 1 + aliases);
  const bool fits = coverage.tensors <= tensors + aliases && coverage.layers <= coverage.tensors &&
                    coverage.experts <= coverage.tensors && (!most_bytes || coverage.payload_bytes <= *most_bytes);
  if (fits) return {};
  return invalid(
      fmt::format("\"coverage\" claims {} tensors of {} bytes, {} layers and {} experts; the files have {} "
                  "tensors of {} bytes",
                  coverage.tensors, coverage.payload_bytes, coverage.layers, coverage.experts, tensors, bytes));
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

Result<Manifest> parse_manifest(std::string_view text) {
  TRY_ASSIGN(Json json, parse_json_file(text, kManifestDocument));
  if (!json.is_object()) return invalid("the manifest is not a JSON object");
  Manifest manifest;
  TRY(read_format(json, manifest));  // first, so that a newer version is reported as newer, not as broken
  TRY_ASSIGN(const Digest seal, read_digest(json, kSealKey));
  json[kSealKey] = "";
  if (sha256(canonical_json(json)) != seal) {
    return Error{ErrorKind::corrupt, "its seal does not fit its content: it was changed after it was written"};
  }
  TRY(read_layer_map(json, manifest));
  TRY(read_aliases(json, manifest));
  TRY(read_provenance(json, manifest));
  TRY(read_files(json, manifest));
  TRY(check_coverage(manifest));
  const bool compressed = std::ranges::any_of(manifest.files, [](const PackedFile& f) { return f.zstd.has_value(); });
  const bool required = std::ranges::find(manifest.requirements, kZstdKey) != manifest.requirements.end();
  if (compressed != required)
    return invalid(fmt::format(R"(compressed files and the requirement "{}" lack each other)", kZstdKey));
  return manifest;
}

}  // namespace dspack::format
