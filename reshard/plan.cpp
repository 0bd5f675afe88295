#include "reshard/plan.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "dspack_version.h"
#include "reshard/placement.h"

namespace dspack::reshard {
namespace {

using format::Role;
using format::TensorEntry;

// A block is what a remote reader must fetch to trust one row: small against a round trip, large against a digest.
constexpr uint64_t kRowBlockBytes = 1 << 20;

/// Puts a file's tensors in order and computes every offset.
PlannedFile lay_out(Placement placed, const format::Checkpoint& source) {
  std::vector<format::TensorInfo> infos;
  std::vector<uint32_t> units;
  std::unordered_map<std::string_view, uint32_t> by_name;
  for (const PlacedTensor& tensor : placed.tensors) {
    const TensorEntry& entry = source.tensors()[tensor.tensor];
    infos.push_back({entry.name, entry.dtype, entry.shape, {}});
    units.push_back(tensor.unit);
    by_name.emplace(entry.name, tensor.tensor);
  }
  format::arrange_tensors(infos, units);
  PlannedFile file{.path = std::move(placed.path),
                   .part = std::move(placed.part),
                   .layer = placed.layer,
                   .experts = std::move(placed.experts),
                   .tensors = {},
                   .offsets = {},
                   .data_start = format::write_header(infos).size(),
                   .size_bytes = 0};
  for (const format::TensorInfo& info : infos) {
    file.tensors.push_back(by_name.at(info.name));
    file.offsets.push_back(file.data_start + info.data.begin);
  }
  file.size_bytes = file.data_start + infos.back().data.end;
  return file;
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

/// The manifest writes names as templates; one that looks like a template would not come back as it was.
Result<void> check_names(const format::Checkpoint& source) {
  for (const TensorEntry& entry : source.tensors()) {
    if (!entry.place.layer || entry.place.expert || !format::template_entry(format::name_template(entry.name)))
      continue;
    return Error{ErrorKind::unsupported, fmt::format("{}: tensor \"{}\" has \"{{expert\" in place of a number",
                                                     source.files()[entry.file].path, entry.name)};
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
  TRY(check_names(source));
  Plan plan;
  plan.recipe = recipe;
  for (Placement& placed : place_tensors(recipe.by, source)) {
    plan.files.push_back(lay_out(std::move(placed), source));
    const PlannedFile& file = plan.files.back();
    plan.output_bytes += file.size_bytes;
    if (file.data_start > format::kMaxHeaderBytes) {
      return Error{
          ErrorKind::invalid,
          fmt::format("{}: would hold {} tensors, whose header is longer than readers accept ({} bytes); group "
                      "into smaller files",
                      file.path, file.tensors.size(), format::kMaxHeaderBytes)};
    }
  }
  plan.shards = make_copies(plan.files, source);
  for (const format::CheckpointFile& file : source.files())
    plan.source_bytes += file.size_bytes;
  plan.digest = plan_digest(recipe, source);
  return plan;
}

std::string planned_header(const PlannedFile& file, const format::Checkpoint& source) {
  std::vector<format::TensorInfo> infos;
  for (size_t slot = 0; slot < file.tensors.size(); ++slot) {
    const TensorEntry& entry = source.tensors()[file.tensors[slot]];
    const uint64_t begin = file.offsets[slot] - file.data_start;
    infos.push_back({entry.name, entry.dtype, entry.shape, {begin, begin + entry.range.size()}});
  }
  return format::write_header(infos);
}

uint64_t rows_per_block(const TensorEntry& tensor) {
  if (tensor.place.role != Role::embed || tensor.shape.size() != 2 || tensor.shape[0] == 0) return 0;
  const uint64_t row_bytes = tensor.range.size() / tensor.shape[0];
  if (row_bytes == 0 || row_bytes * tensor.shape[0] != tensor.range.size()) return 0;
  return std::max<uint64_t>(1, kRowBlockBytes / row_bytes);
}

}  // namespace dspack::reshard
