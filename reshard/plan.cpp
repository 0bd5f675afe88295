#include "reshard/plan.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "dspack_version.h"
#include "format/base/checked.h"

namespace dspack::reshard {
namespace {

using format::Role;
using format::TensorEntry;

// A block is what a remote reader must fetch to trust one row: small against a round trip, large against a digest.
constexpr uint64_t kRowBlockBytes = 1 << 20;

/// Where a tensor goes when experts have files of their own (DESIGN: the packed repository).
PlannedFile place_tensor(const format::TensorName& name) {
  PlannedFile file;
  if (name.role == Role::embed) {
    file.path = "model/embed.safetensors";
    file.part = "embed";
  } else if (name.role == Role::head) {
    file.path = "model/head.safetensors";
    file.part = "head";
  } else if (name.expert) {
    file.path = fmt::format("model/layers/{:03}/experts/{:03}.safetensors", name.layer->value, name.expert->value);
    file.part = "expert";
    file.layer = name.layer;
    file.expert = name.expert;
  } else if (name.layer) {
    file.path = fmt::format("model/layers/{:03}/dense.safetensors", name.layer->value);
    file.part = "dense";
    file.layer = name.layer;
  } else {
    file.path = "model/other.safetensors";
    file.part = "other";
  }
  return file;
}

std::vector<format::TensorInfo> tensor_infos(const std::vector<uint32_t>& tensors, const format::Checkpoint& source) {
  std::vector<format::TensorInfo> infos;
  for (const uint32_t index : tensors) {
    const TensorEntry& entry = source.tensors()[index];
    infos.push_back({entry.name, entry.dtype, entry.shape, {}});
  }
  format::arrange_tensors(infos);
  return infos;
}

/// Puts the file's tensors in order and computes every offset.
void lay_out(PlannedFile& file, const format::Checkpoint& source) {
  std::map<std::string_view, uint32_t> by_name;
  for (const uint32_t index : file.tensors)
    by_name.emplace(source.tensors()[index].name, index);
  const std::vector<format::TensorInfo> infos = tensor_infos(file.tensors, source);
  file.data_start = format::write_header(infos).size();
  file.tensors.clear();
  for (const format::TensorInfo& info : infos) {
    file.tensors.push_back(by_name.at(info.name));
    file.offsets.push_back(file.data_start + info.data.begin);
  }
  file.size_bytes = file.data_start + infos.back().data.end;
}

/// An FP8 weight without its scale is worthless: better refused now than found when it is run.
Result<void> check_scales(const format::Checkpoint& source) {
  for (const TensorEntry& entry : source.tensors()) {
    if (entry.dtype != Dtype::f8_e4m3 || !entry.name.ends_with(".weight")) continue;
    const std::vector<std::string> names = format::scale_names(entry.name);
    const bool found =
        std::any_of(names.begin(), names.end(), [&](const std::string& n) { return source.find(n) != nullptr; });
    if (!found) {
      return Error{ErrorKind::invalid,
                   fmt::format("{}: FP8 tensor \"{}\" has no scale (\"{}\" is missing); the checkpoint is incomplete",
                               source.files()[entry.file].path, entry.name, names.front())};
    }
  }
  return {};
}

std::vector<std::vector<Copy>> make_copies(const std::vector<PlannedFile>& files, const format::Checkpoint& source) {
  std::vector<std::vector<Copy>> shards(source.files().size());
  for (uint32_t f = 0; f < files.size(); ++f) {
    for (uint32_t slot = 0; slot < files[f].tensors.size(); ++slot) {
      const uint32_t tensor = files[f].tensors[slot];
      const TensorEntry& entry = source.tensors()[tensor];
      shards[entry.file].push_back({tensor, entry.range, f, slot, files[f].offsets[slot]});
    }
  }
  for (std::vector<Copy>& copies : shards) {
    std::sort(copies.begin(), copies.end(), [](const Copy& a, const Copy& b) {
      return std::tie(a.source.begin, a.source.end) < std::tie(b.source.begin, b.source.end);
    });
  }
  return shards;
}

/// Everything that decides the bytes of the result except the weights themselves.
std::string plan_digest(const Recipe& recipe, const format::Checkpoint& source) {
  format::Json json = {{"program", kVersion}, {"recipe", recipe_json(recipe)}, {"source", format::Json::array()}};
  for (const format::CheckpointFile& file : source.files()) {
    json["source"].push_back(
        {{"path", file.path}, {"size", file.size_bytes}, {"header", to_hex(format::sha256(file.header))}});
  }
  return to_hex(format::sha256(format::canonical_json(json)));
}

}  // namespace

Result<Plan> make_plan(const Recipe& recipe, const format::Checkpoint& source) {
  if (source.manifest()) {
    return Error{ErrorKind::unsupported, "the source is a packed repository already; name the original checkpoint"};
  }
  if (source.tensors().empty()) return Error{ErrorKind::invalid, "the checkpoint holds no tensor"};
  TRY(check_scales(source));
  std::map<std::string, PlannedFile> by_path;
  for (uint32_t i = 0; i < source.tensors().size(); ++i) {
    PlannedFile file = place_tensor(source.tensors()[i].place);
    by_path.try_emplace(file.path, file).first->second.tensors.push_back(i);
  }
  Plan plan;
  plan.recipe = recipe;
  for (auto& [path, file] : by_path) {
    lay_out(file, source);
    plan.output_bytes += file.size_bytes;
    plan.files.push_back(std::move(file));
  }
  plan.shards = make_copies(plan.files, source);
  for (const format::CheckpointFile& file : source.files())
    plan.source_bytes += file.size_bytes;
  plan.digest = plan_digest(recipe, source);
  return plan;
}

std::string planned_header(const PlannedFile& file, const format::Checkpoint& source) {
  return format::write_header(tensor_infos(file.tensors, source));
}

uint64_t rows_per_block(const TensorEntry& tensor) {
  if (tensor.place.role != Role::embed || tensor.shape.size() != 2 || tensor.shape[0] == 0) return 0;
  const uint64_t row_bytes = tensor.range.size() / tensor.shape[0];
  if (row_bytes == 0 || row_bytes * tensor.shape[0] != tensor.range.size()) return 0;
  return std::max<uint64_t>(1, kRowBlockBytes / row_bytes);
}

}  // namespace dspack::reshard
