#include "reshard/link.h"

#include <algorithm>

#include <fmt/format.h>

#include "reshard/companions.h"
#include "reshard/other_loaders.h"

namespace dspack::reshard {
namespace {

using format::Manifest;

constexpr std::string_view kWeightEnding = ".safetensors";

/// Whatever a manifest requires of its readers is something that other loaders do not know, but for other models'
/// names, which their loaders know, and a layer map, of which they are warned.
Result<void> check_requirements(const Manifest& manifest) {
  const auto refuse = [](std::string_view reason) {
    return Error{ErrorKind::unsupported,
                 fmt::format("other programs cannot read it: {}; reshard unpack makes an ordinary checkpoint", reason)};
  };
  if (const auto reason = unreadable_reason(manifest)) return refuse(*reason);
  if (has_requirement(manifest, format::kAliasesKey))
    return refuse("equal tensors are stored once (aliases), and they look for each by its name");
  for (const std::string& name : manifest.requirements) {
    if (name != format::kLayerMapKey && name != format::kNameFamiliesKey) return refuse("it requires " + name);
  }
  for (const format::PackedFile& file : manifest.files) {
    if (!file.path.ends_with(kWeightEnding)) return refuse(file.path + " is no safetensors file by its name");
  }
  return {};
}

class Planner {
 public:
  Result<void> link(const std::string& name, const std::string& path) {
    if (name == format::kIndexPath || name == kLinkRecord) {
      return Error{ErrorKind::conflict,
                   fmt::format("{}: would be linked as {}, which the folder needs itself", path, name)};
    }
    const auto [there, added] = plan_.links.emplace(name, path);
    if (added) return {};
    return Error{ErrorKind::conflict, fmt::format("{} and {} would both be linked as {}", there->second, path, name)};
  }

  Result<void> add_weights(const format::Checkpoint& packed) {
    for (const format::CheckpointFile& file : packed.files())
      TRY(link(flat_name(file.path), file.path));
    plan_.weights = plan_.links.size();
    format::Json map = format::Json::object();
    for (const format::TensorEntry& tensor : packed.tensors())
      map[tensor.name] = flat_name(packed.files()[tensor.file].path);
    plan_.index = hub_index(packed.payload_bytes(), std::move(map));
    return {};
  }

  Result<void> add_companions(const Manifest& manifest) {
    for (const format::CompanionFile& file : manifest.companions) {
      const auto name = source_name(file.path);
      if (!name || name == format::kIndexPath) continue;  // ours, or the index of files that are not there
      if (name->ends_with(kWeightEnding)) {
        return Error{ErrorKind::invalid,
                     file.path + ": is no weight file of the manifest, but loaders would take it for one"};
      }
      TRY(link(*name, file.path));
    }
    return {};
  }

  void add_warnings(const Manifest& manifest) {
    if (manifest.layer_map) {
      plan_.warnings.push_back(
          fmt::format("the repository has a layer map ({}), which other programs pass by: they run "
                      "each layer of the model once",
                      format::to_string(*manifest.layer_map)));
    }
    if (const std::string_view readers = readers_of_names(name_author(manifest)); !readers.empty())
      plan_.warnings.emplace_back(readers);
  }

  LinkPlan take() { return std::move(plan_); }

 private:
  LinkPlan plan_;
};

}  // namespace

std::string flat_name(std::string_view path) {
  constexpr std::string_view kFolder = "model/";
  constexpr std::string_view kBegin = "model-";
  if (path.starts_with(kFolder)) path.remove_prefix(kFolder.size());
  std::string name(path);
  std::ranges::replace(name, '/', '-');
  return name.starts_with(kBegin) ? name : std::string(kBegin) + name;
}

Result<LinkPlan> plan_links(const format::Checkpoint& packed) {
  const Manifest& manifest = *packed.manifest();
  TRY(check_requirements(manifest));
  if (manifest.coverage.of)
    return Error{ErrorKind::unsupported, "it holds a part of the model, and other loaders need all of it"};
  Planner planner;
  TRY(planner.add_weights(packed));
  TRY(planner.add_companions(manifest));
  planner.add_warnings(manifest);
  return planner.take();
}

Result<void> check_present(const LinkPlan& plan, const Manifest& manifest, const format::Path& packed,
                           format::FileSystem& files) {
  std::map<std::string_view, uint64_t> sizes;
  for (const format::PackedFile& file : manifest.files)
    sizes.emplace(file.path, file.size_bytes);
  for (const format::CompanionFile& file : manifest.companions)
    sizes.emplace(file.path, file.size_bytes);
  for (const auto& [name, path] : plan.links) {
    const format::Path place = packed / path;
    TRY_ASSIGN(const auto info, files.stat(place));
    if (!info)
      return Error{ErrorKind::not_found, place.string() + ": is missing; complete the packed repository first"};
    if (info->is_regular && info->size_bytes == sizes.at(path)) continue;
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: {} bytes, the manifest has {}; reshard verify tells what else differs",
                             place.string(), info->size_bytes, sizes.at(path))};
  }
  return {};
}

}  // namespace dspack::reshard
