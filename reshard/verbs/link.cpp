#include "reshard/verbs/link.h"

#include <algorithm>

#include <fmt/format.h>

#include "format/file_system.h"
#include "format/index.h"
#include "format/json.h"
#include "reshard/run/companions.h"
#include "reshard/run/model_card.h"

namespace dspack::reshard {
namespace {

using format::Manifest;

constexpr std::string_view kWeightEnding = ".safetensors";

/// Other loaders do not know what a manifest requires of its readers, except for other models' names, which those
/// models' loaders know, and a layer map, about which the user is warned.
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
    plan_.index = format::hub_index(packed.payload_bytes(), std::move(map));
    return {};
  }

  Result<void> add_companions(const Manifest& manifest) {
    for (const format::CompanionFile& file : manifest.companions) {
      const auto name = source_name(file.path);
      if (!name || name == format::kIndexPath) continue;  // not the source's, or the index of its own files
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
          fmt::format("the repository has a layer map ({}), which other programs ignore: they run "
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

// The flat folder of `reshard link` on disk: made beside its place, renamed into it, recognised later.
namespace {

using format::FileSystem;
using format::Json;
using format::Path;

/// The folder's content by path: "folder", or "link" or "file" with the digest of its target or text. Digests, since
/// the record is JSON and a path need not be valid JSON text.
using Content = std::map<std::string, std::string>;

std::string digest_of(std::string_view kind, std::string_view says) {
  return fmt::format("{} {}", kind, to_hex(format::sha256(says)));
}

/// The target of a link in the folder.
Path target_of(const std::string& name, const std::string& path, const Path& packed, const Path& flat) {
  return (packed / path).lexically_relative((flat / name).parent_path());
}

/// The folder's planned content, without its record.
Content planned_content(const LinkPlan& plan, const Path& packed, const Path& flat) {
  Content content;
  for (const auto& [name, path] : plan.links) {
    content[name] = digest_of("link", target_of(name, path, packed, flat).string());
    for (Path folder = Path(name).parent_path(); !folder.empty(); folder = folder.parent_path())
      content[folder.string()] = "folder";
  }
  content[format::kIndexPath] = digest_of("file", plan.index);
  return content;
}

std::string record_text(const Content& content) {
  return format::canonical_json({{"made_by", "reshard link"}, {"content", content}}) + "\n";
}

/// Describes what is at a path; empty if no record can describe it. A file is read only if the record has a file there.
Result<std::string> what_is(const Path& path, const Json& recorded, FileSystem& files) {
  TRY_ASSIGN(const auto target, files.read_link(path));
  if (target) return digest_of("link", target->string());
  TRY_ASSIGN(const auto info, files.stat(path));
  if (info && info->is_directory) return std::string("folder");
  const bool is_known = recorded.is_string() && recorded.get_ref<const std::string&>().starts_with("file ");
  if (!is_known || !info || !info->is_regular || info->size_bytes > format::kLinkRecordDocument.bytes)
    return std::string();
  TRY_ASSIGN(const std::string text, read_text(files, path, format::kLinkRecordDocument.bytes));
  return digest_of("file", text);
}

/// The first entry of the folder that differs from the record; nullopt: none. Counts the equal ones in `known`.
Result<std::optional<std::string>> find_foreign(const Path& folder, const std::string& below, const Json& record,
                                                size_t& known, FileSystem& files) {
  TRY_ASSIGN(const std::vector<std::string> names, files.list(folder / below));
  for (const std::string& name : names) {
    const std::string path = below.empty() ? name : fmt::format("{}/{}", below, name);
    if (path == kLinkRecord) continue;
    const auto recorded = record.find(path);
    if (recorded == record.end()) return std::optional(path);
    TRY_ASSIGN(const std::string found, what_is(folder / path, *recorded, files));
    if (found.empty() || *recorded != found) return std::optional(path);
    ++known;
    if (found != "folder") continue;
    TRY_ASSIGN(const auto inside, find_foreign(folder, path, record, known, files));
    if (inside) return inside;
  }
  return std::optional<std::string>();
}

enum class Found { nothing, earlier_result, same_result };

/// Looks at the folder's place. Errors: conflict, for anything except an unchanged earlier result.
Result<Found> look(const Path& flat, const std::string& record, FileSystem& files) {
  TRY_ASSIGN(const auto link, files.read_link(flat));
  TRY_ASSIGN(const auto info, files.stat(flat));
  if (!info && !link) return Found::nothing;
  if (link || !info->is_directory) {
    return Error{ErrorKind::conflict, flat.string() + ": exists and is not a folder"};
  }
  TRY_ASSIGN(const std::vector<std::string> names, files.list(flat));
  if (names.empty()) return Found::nothing;
  const auto refuse = [&](const std::string& name) -> Error {
    return {
        ErrorKind::conflict,
        fmt::format("{}: holds what reshard link did not put there ({}); choose another folder", flat.string(), name)};
  };
  if (std::ranges::find(names, kLinkRecord) == names.end()) return refuse(names.front());
  TRY_ASSIGN(const std::string text, read_text(files, flat / kLinkRecord, format::kLinkRecordDocument.bytes));
  const auto known = format::parse_json(text, format::kLinkRecordDocument);
  if (!known || !known->is_object() || !known->contains("content") || !(*known)["content"].is_object()) {
    return refuse(kLinkRecord);
  }
  const Json& content = (*known)["content"];
  size_t unchanged = 0;
  TRY_ASSIGN(const auto foreign, find_foreign(flat, "", content, unchanged, files));
  if (foreign) return refuse(*foreign);
  // Entries that were removed since then do not matter: the folder is made again.
  return text == record && content.size() == unchanged ? Found::same_result : Found::earlier_result;
}

/// The folder to make.
struct Wanted {
  const LinkPlan& plan;
  Path packed;
  Path flat;
  std::string record;
};

Result<void> fill(const Path& folder, const Wanted& wanted, FileSystem& files) {
  format::DurableFolders folders(files, folder);
  TRY(folders.make(folder));
  for (const auto& [name, path] : wanted.plan.links) {
    TRY(folders.make((folder / name).parent_path()));
    const auto made = files.make_link(target_of(name, path, wanted.packed, wanted.flat), folder / name);
    if (!made && made.error().kind == ErrorKind::unsupported) {
      return Error{ErrorKind::unsupported,
                   made.error().message + "; choose a folder on another one, or make a copy with reshard unpack"};
    }
    if (!made) return made.error();
  }
  TRY(format::write_sealed(files, folder / format::kIndexPath, wanted.plan.index));
  return format::write_sealed(files, folder / kLinkRecord, wanted.record);
}

/// Removes a run's files beside the folder, by their names. If others exist, they stay, and so does the work folder.
Result<void> remove_work(const Path& work, FileSystem& files) {
  TRY(files.remove_tree(work / "new"));
  TRY(files.remove_tree(work / "old"));
  TRY(files.remove_file(work / "lock"));
  return files.remove_empty_folder(work);
}

/// Removes the remains of a run that was killed after the folder was in its place.
Result<void> clear_remains(const Path& work, format::DurableFolders& folders, FileSystem& files) {
  TRY_ASSIGN(const auto there, files.stat(work));
  if (!there) return {};
  TRY(folders.make(work));  // refuses a link
  const auto lock = files.lock(work / "lock", format::LockKind::exclusive);
  if (!lock) return lock.error().kind == ErrorKind::conflict ? Result<void>() : lock.error();
  return remove_work(work, files);
}

}  // namespace

Result<LinkOutcome> make_links(const LinkPlan& plan, const Path& packed, const Path& flat, FileSystem& files) {
  std::error_code code;
  const Path from = std::filesystem::canonical(packed, code);
  if (code) return Error{ErrorKind::io, fmt::format("{}: {}", packed.string(), code.message())};
  // Resolve links in the path to the folder: relative targets with ".." would lead elsewhere through these.
  Path place = std::filesystem::weakly_canonical(std::filesystem::absolute(flat, code), code);
  if (code) return Error{ErrorKind::io, fmt::format("{}: {}", flat.string(), code.message())};
  if (!place.has_filename()) place = place.parent_path();
  const Wanted wanted{plan, from, place, record_text(planned_content(plan, from, place))};

  const Path parent = place.parent_path();
  const Path work = parent / ("." + place.filename().string() + ".reshard-link");
  format::DurableFolders folders(files, parent);
  TRY_ASSIGN(const Found seen, look(place, wanted.record, files));  // a refusal must create nothing
  if (seen == Found::same_result) {
    TRY(clear_remains(work, folders, files));
    return LinkOutcome::already_there;
  }
  TRY(folders.make(work));
  TRY_ASSIGN(const auto lock, files.lock(work / "lock", format::LockKind::exclusive));
  TRY_ASSIGN(const Found found, look(place, wanted.record, files));  // again: another run may just have ended
  TRY(files.remove_tree(work / "new"));                              // left by a run that was killed
  TRY(files.remove_tree(work / "old"));
  if (const auto filled = fill(work / "new", wanted, files); !filled) {
    TRY(remove_work(work, files));
    return filled.error();
  }
  if (found != Found::nothing) TRY(files.rename(place, work / "old"));
  TRY(files.rename(work / "new", place));
  TRY(files.sync_folder(parent));
  TRY(remove_work(work, files));
  return found == Found::nothing ? LinkOutcome::made : LinkOutcome::updated;
}

}  // namespace dspack::reshard
