#include "reshard/run/seal.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "dspack_version.h"
#include "format/index.h"
#include "format/kept_headers.h"
#include "reshard/run/changed_config.h"
#include "reshard/run/model_card.h"

namespace dspack::reshard {
namespace {

using format::Manifest;
using format::PackedFile;

double relative_rms(const kernels::Loss& loss) {
  if (loss.squared_error == 0) return 0;
  if (loss.squared_value == 0) return 1;
  return std::sqrt(loss.squared_error / loss.squared_value);
}

struct RoleLoss {
  uint64_t tensors = 0;
  kernels::Loss all;
  double worst = -1;
  std::string worst_name;
  std::map<ExpertKey, kernels::Loss> experts;  // sums over all matrices of each expert
};

/// {"layer":L,"expert":E,"relative_rms":Y} of the expert with the largest loss, the first if several are equal.
format::Json worst_expert(const std::map<ExpertKey, kernels::Loss>& experts) {
  const auto worst =
      std::ranges::max_element(experts, {}, [](const auto& expert) { return relative_rms(expert.second); });
  return {{"layer", worst->first.layer.value},
          {"expert", worst->first.expert.value},
          {"relative_rms", relative_rms(worst->second)}};
}

/// Accuracy lost by transforms:
/// {"routed_expert":{"tensors":N,"relative_rms":X,"worst":{"name":"...","relative_rms":Y},"worst_expert":{...}},...}
/// over the tensors that a conversion has rounded: sqrt(sum of squared errors / sum of squared values). null: none was.
format::Json rounding_errors(const Plan& plan, const std::vector<FileDigests>& digests) {
  std::map<format::Role, RoleLoss> roles;
  for (size_t file = 0; file < digests.size(); ++file) {
    for (size_t slot = 0; slot < digests[file].tensors.size(); ++slot) {
      const auto& loss = digests[file].tensors[slot].loss;
      if (!loss) continue;
      const format::TensorEntry& tensor = plan.result.tensors()[plan.files[file].tensors[slot]];
      RoleLoss& role = roles[tensor.place.role];
      ++role.tensors;
      role.all += *loss;
      if (tensor.place.layer && tensor.place.expert) role.experts[{*tensor.place.layer, *tensor.place.expert}] += *loss;
      if (relative_rms(*loss) <= role.worst) continue;
      role.worst = relative_rms(*loss);
      role.worst_name = tensor.name;
    }
  }
  format::Json json;
  for (const auto& [role, loss] : roles) {
    format::Json& errors = json[std::string(to_string(role))];
    errors = {{"tensors", loss.tensors},
              {"relative_rms", relative_rms(loss.all)},
              {"worst", {{"name", loss.worst_name}, {"relative_rms", loss.worst}}}};
    if (!loss.experts.empty()) errors["worst_expert"] = worst_expert(loss.experts);
  }
  return json;
}

format::Origin origin_of(const format::Repository& repository) {
  // Equal files give the same packed repository wherever they are: a folder's path or address is not recorded.
  const auto hub = repository.hub_origin();
  if (!hub) return {"folder", "", ""};
  return {"hub", hub->repository, hub->commit};
}

/// The name for format::tensor_name: literal in a file without a single layer.
std::string layout_name(const PlannedFile& file, const format::TensorEntry& tensor) {
  if (!file.layer) return tensor.name;
  if (!tensor.place.expert || file.experts.size() == 1) return format::name_template(tensor.name);
  const ExpertKey key{*tensor.place.layer, *tensor.place.expert};
  const auto entry = std::lower_bound(file.experts.begin(), file.experts.end(), key) - file.experts.begin();
  return format::name_template(tensor.name, static_cast<size_t>(entry));
}

format::Layout layout_of(const PlannedFile& file, const format::Checkpoint& source) {
  format::Layout layout;
  for (size_t slot = 0; slot < file.tensors.size(); ++slot) {
    const format::TensorEntry& tensor = source.tensors()[file.tensors[slot]];
    const uint64_t begin = file.offsets[slot] - file.data_start;
    layout.tensors.push_back(
        {layout_name(file, tensor), tensor.dtype, tensor.shape, {begin, begin + tensor.range.size()}});
  }
  return layout;
}

/// Equal layouts have equal keys.
std::string layout_key(const format::Layout& layout) {
  std::string key;
  for (const format::LayoutTensor& tensor : layout.tensors) {
    key += fmt::format("{} {} {} {}\n", tensor.name, to_string(tensor.dtype), tensor.data.begin, tensor.data.end);
    for (const uint64_t dimension : tensor.shape)
      key += fmt::format("{},", dimension);
  }
  return key;
}

PackedFile packed_file(const PlannedFile& planned, const FileDigests& digests, const format::Checkpoint& source) {
  PackedFile file{.path = planned.path,
                  .part = planned.part,
                  .layer = planned.layer,
                  .experts = {},
                  .layout = 0,
                  .size_bytes = planned.size_bytes,
                  .data_start = planned.data_start,
                  .sha256 = digests.sha256,
                  .tensors = {},
                  .zstd = digests.zstd,
                  .row_blocks = {}};
  std::map<ExpertKey, std::vector<format::NamedDigest>> experts;
  for (size_t slot = 0; slot < planned.tensors.size(); ++slot) {
    const format::TensorEntry& tensor = source.tensors()[planned.tensors[slot]];
    const TensorDigests& own = digests.tensors[slot];
    file.tensors.push_back(own.whole);
    if (const format::TensorName& place = tensor.place; place.expert) {
      experts[{*place.layer, *place.expert}].push_back({tensor.name, tensor.dtype, tensor.shape, own.whole});
    }
    if (!own.row_blocks.empty()) file.row_blocks.push_back({slot, rows_per_block(tensor), own.row_blocks});
  }
  for (auto& [key, named] : experts)
    file.experts.push_back({key, format::expert_digest(std::move(named))});
  return file;
}

format::Extension extension_of(const format::Checkpoint& catalogue) {
  std::set<LayerId> layers;
  for (const format::TensorEntry& tensor : catalogue.tensors()) {
    if (tensor.place.layer) layers.insert(*tensor.place.layer);
  }
  return {.layers = layers.size(),
          .experts = catalogue.experts().size(),
          .tensors = catalogue.tensors().size(),
          .payload_bytes = catalogue.payload_bytes()};
}

/// Requires the features that a reader needs to understand these names.
void require_names(Manifest& manifest, const format::Checkpoint& result, const format::Checkpoint& source) {
  const auto require = [&manifest](const char* feature) {
    if (!has_requirement(manifest, feature)) manifest.requirements.emplace_back(feature);
  };
  if (std::ranges::any_of(result.tensors(),
                          [](const auto& tensor) { return format::needs_name_families(tensor.name); }))
    require(format::kNameFamiliesKey);
  if (!source.fused().empty()) require(format::kFusedExpertsKey);
}

}  // namespace

void describe_files(Manifest& manifest, const std::vector<PlannedFile>& planned,
                    const std::vector<FileDigests>& digests, const format::Checkpoint& result,
                    const format::Checkpoint& source) {
  std::map<std::string, uint64_t> layouts;
  for (size_t i = 0; i < planned.size(); ++i) {
    PackedFile file = packed_file(planned[i], digests[i], result);
    format::Layout layout = layout_of(planned[i], result);
    const auto [known, added] = layouts.emplace(layout_key(layout), manifest.layouts.size());
    if (added) manifest.layouts.push_back(std::move(layout));
    file.layout = known->second;
    manifest.files.push_back(std::move(file));
  }
  static_cast<format::Extension&>(manifest.coverage) = extension_of(result);
  require_names(manifest, result, source);
}

Result<void> seal_repository(const SealInput& input, DurableFolders& folders, format::FileSystem& files,
                             const std::stop_token& stop) {
  const RepackOutlook& outlook = input.outlook;
  const format::Path& out = input.options.out;
  Manifest manifest;
  manifest.program = fmt::format("dspack {}", kVersion);
  manifest.recipe = recipe_json(outlook.plan.recipe);
  manifest.plan = outlook.plan.digest;
  if (const auto& layers = outlook.plan.recipe.layers) {
    manifest.layer_map = std::get<format::LayerMap>(*layers);  // ensured by resolve_layers
    manifest.requirements.emplace_back(format::kLayerMapKey);
  }
  for (const Alias& alias : outlook.plan.aliases)
    manifest.aliases.emplace(outlook.source.tensors()[alias.tensor].name, outlook.source.tensors()[alias.stored].name);
  if (outlook.plan.recipe.zstd_level) manifest.requirements.emplace_back(format::kZstdKey);
  if (!manifest.aliases.empty()) manifest.requirements.emplace_back(format::kAliasesKey);
  manifest.origin = origin_of(input.repository);
  for (size_t i = 0; i < input.shard_digests.size(); ++i) {
    const format::CheckpointFile& shard = outlook.source.files()[i];
    const auto& digest = input.shard_digests[i];
    manifest.source.push_back({shard.path, shard.size_bytes, digest, digest ? 0 : outlook.plan.reads[i].bytes()});
  }
  describe_files(manifest, outlook.plan.files, input.file_digests, outlook.plan.result, outlook.source);
  if (!outlook.plan.complete) manifest.coverage.of = extension_of(outlook.source);
  manifest.rounding_errors = rounding_errors(outlook.plan, input.file_digests);

  for (const Companion& companion : outlook.companions) {
    TRY_ASSIGN(format::CompanionFile file, copy_companion(companion, input.repository, out, files, folders, stop));
    manifest.companions.push_back(std::move(file));
  }
  TRY_ASSIGN(const std::string headers, format::kept_headers(outlook.source));
  TRY_ASSIGN(const auto source_card, read_source_card(out, files));
  std::vector<std::pair<std::string, std::string>> written{
      {format::kHeadersPath, headers}, {"README.md", model_card(manifest, outlook.plan.recipe, source_card)}};
  if (!unreadable_reason(manifest))
    written.emplace_back(format::kIndexPath, packed_index(outlook.plan.files, outlook.plan.result));
  if (outlook.changed_config) written.emplace_back(kConfigPath, *outlook.changed_config);
  for (const auto& [path, text] : written) {
    TRY_ASSIGN(format::CompanionFile file, write_companion(path, text, out, files, folders));
    manifest.companions.push_back(std::move(file));
  }
  std::sort(manifest.companions.begin(), manifest.companions.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  TRY(format::write_sealed(files, out / format::kManifestPath, write_manifest(manifest)));
  return remove_work_folder(out, files);
}

}  // namespace dspack::reshard
