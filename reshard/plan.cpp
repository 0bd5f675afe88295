#include "reshard/plan.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dspack_version.h"

namespace dspack::reshard {
namespace {

using format::TensorEntry;

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

/// Experts that are there and not found would all come into one file, which is not what was asked for.
Result<void> check_experts(const Recipe& recipe, const format::Checkpoint& source) {
  if (recipe.by.kind == Grouping::Kind::shard || !source.experts().empty() || source.expert_doubts().empty()) return {};
  return Error{ErrorKind::unsupported,
               fmt::format("no expert was found to group by: {}; shards hold tensors of any names: --by shard:5GB",
                           fmt::join(source.expert_doubts(), "; "))};
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

}  // namespace

std::string plan_digest(const Recipe& recipe, const std::vector<PlanSource>& source) {
  format::Json json = {{"program", kVersion}, {"recipe", recipe_json(recipe)}, {"source", format::Json::array()}};
  for (const PlanSource& file : source) {
    json["source"].push_back(
        {{"path", file.path}, {"size", file.size_bytes}, {"header", to_hex(format::sha256(file.header))}});
  }
  return to_hex(format::sha256(format::canonical_json(json)));
}

Result<Plan> make_plan(const Recipe& recipe, const format::Checkpoint& source) {
  if (source.manifest()) {
    return Error{ErrorKind::unsupported, "the source is a packed repository already; name the original checkpoint"};
  }
  if (source.tensors().empty()) return Error{ErrorKind::invalid, "the checkpoint holds no tensor"};
  TRY(check_scales(source));
  TRY(check_names(source));
  TRY(check_experts(recipe, source));
  Plan plan;
  plan.recipe = recipe;
  plan.files = plan_files(recipe.by, source);
  for (const PlannedFile& file : plan.files) {
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
  std::vector<PlanSource> shards;
  for (const format::CheckpointFile& file : source.files())
    shards.push_back({file.path, file.size_bytes, file.header});
  plan.digest = plan_digest(recipe, shards);
  return plan;
}

}  // namespace dspack::reshard
