// The flat folder of `reshard link` on the disk: made beside its place, moved there whole, known again later.
#include <fmt/format.h>

#include "format/durable_folders.h"
#include "format/json.h"
#include "reshard/link.h"

namespace dspack::reshard {
namespace {

using format::FileSystem;
using format::Json;
using format::Path;

constexpr uint64_t kMaxRecordBytes = 256ULL << 20;  // V3's record is 2 MB, its index 9 MB

/// Everything in a folder and below: what links say, the digest of files, "" for folders.
using Content = std::map<std::string, std::string>;

Result<void> read_content(const Path& folder, const std::string& below, FileSystem& files, Content& content) {
  TRY_ASSIGN(const std::vector<std::string> names, files.list(folder / below));
  for (const std::string& name : names) {
    const std::string path = below.empty() ? name : fmt::format("{}/{}", below, name);
    TRY_ASSIGN(const auto target, files.read_link(folder / path));
    if (target) {
      content[path] = "link " + target->string();
      continue;
    }
    TRY_ASSIGN(const auto info, files.stat(folder / path));
    if (info && info->is_directory) {
      content[path] = "folder";
      TRY(read_content(folder, path, files, content));
    } else if (info && info->is_regular && info->size_bytes <= kMaxRecordBytes) {
      TRY_ASSIGN(const std::string text, read_text(files, folder / path, kMaxRecordBytes));
      content[path] = "file " + to_hex(format::sha256(text));
    } else {
      content[path] = "something else";
    }
  }
  return {};
}

/// What the folder will hold, its record left out.
Content planned_content(const LinkPlan& plan, const Path& packed, const Path& flat) {
  Content content;
  for (const auto& [name, path] : plan.links) {
    const Path link = flat / name;
    content[name] = "link " + (packed / path).lexically_relative(link.parent_path()).string();
    for (Path folder = Path(name).parent_path(); !folder.empty(); folder = folder.parent_path())
      content[folder.string()] = "folder";
  }
  content[format::kIndexPath] = "file " + to_hex(format::sha256(plan.index));
  return content;
}

std::string record_text(const Content& content) {
  return format::canonical_json({{"made_by", "reshard link"}, {"content", content}}) + "\n";
}

enum class Found { nothing, earlier_result, same_result };

/// What is where the folder shall be; anything but an earlier result, unchanged, is an error.
Result<Found> look(const Path& flat, const std::string& record, FileSystem& files) {
  TRY_ASSIGN(const auto link, files.read_link(flat));
  TRY_ASSIGN(const auto info, files.stat(flat));
  if (!info && !link) return Found::nothing;
  if (link || !info->is_directory) {
    return Error{ErrorKind::conflict, flat.string() + ": exists and is not a folder"};
  }
  Content content;
  TRY(read_content(flat, "", files, content));
  if (content.empty()) return Found::nothing;
  const auto refuse = [&](const std::string& name) -> Error {
    return {
        ErrorKind::conflict,
        fmt::format("{}: holds what reshard link did not put there ({}); choose another folder", flat.string(), name)};
  };
  if (content.erase(kLinkRecord) == 0) return refuse(content.begin()->first);
  TRY_ASSIGN(const std::string text, read_text(files, flat / kLinkRecord, kMaxRecordBytes));
  const auto known = format::parse_json(text);
  if (!known || !known->is_object() || !known->contains("content")) return refuse(kLinkRecord);
  const Json& before = (*known)["content"];
  for (const auto& [name, what] : content) {
    if (!before.contains(name) || before[name] != what) return refuse(name);
  }
  // What somebody has removed since is no loss: the folder is made anew.
  return text == record && before.size() == content.size() ? Found::same_result : Found::earlier_result;
}

Result<void> fill(const Path& folder, const Content& content, const LinkPlan& plan, const std::string& record,
                  FileSystem& files) {
  constexpr size_t kWord = 5;  // "link "
  format::DurableFolders folders(files, folder);
  TRY(folders.make(folder));
  for (const auto& [name, what] : content) {
    if (!what.starts_with("link ")) continue;
    TRY(folders.make((folder / name).parent_path()));
    const auto made = files.make_link(what.substr(kWord), folder / name);
    if (!made && made.error().kind == ErrorKind::unsupported) {
      return Error{ErrorKind::unsupported,
                   made.error().message + "; choose a folder on another one, or make a copy with reshard unpack"};
    }
    if (!made) return made.error();
  }
  TRY(format::write_sealed(files, folder / format::kIndexPath, plan.index));
  return format::write_sealed(files, folder / kLinkRecord, record);
}

/// Removes what a run left that was killed when the folder was in its place already.
Result<void> clear_remains(const Path& work, FileSystem& files) {
  TRY_ASSIGN(const auto there, files.stat(work));
  if (!there) return {};
  const auto lock = files.lock(work / "lock");
  if (!lock) return lock.error().kind == ErrorKind::conflict ? Result<void>() : lock.error();
  return files.remove_tree(work);
}

}  // namespace

Result<LinkOutcome> make_links(const LinkPlan& plan, const Path& packed, const Path& flat, FileSystem& files) {
  std::error_code code;
  const Path from = std::filesystem::canonical(packed, code);
  if (code) return Error{ErrorKind::io, fmt::format("{}: {}", packed.string(), code.message())};
  // Links are read from where the folder really lies: through links in the way to it, ".." would lead elsewhere.
  Path place = std::filesystem::weakly_canonical(std::filesystem::absolute(flat, code), code);
  if (code) return Error{ErrorKind::io, fmt::format("{}: {}", flat.string(), code.message())};
  if (!place.has_filename()) place = place.parent_path();
  const Content content = planned_content(plan, from, place);
  const std::string record = record_text(content);

  const Path parent = place.parent_path();
  const Path work = parent / ("." + place.filename().string() + ".reshard-link");
  format::DurableFolders folders(files, parent);
  TRY_ASSIGN(const Found seen, look(place, record, files));  // a refusal leaves nothing behind
  if (seen == Found::same_result) {
    TRY(clear_remains(work, files));
    return LinkOutcome::already_there;
  }
  TRY(folders.make(work));
  TRY_ASSIGN(const auto lock, files.lock(work / "lock"));
  TRY_ASSIGN(const Found found, look(place, record, files));  // again: another run may just have ended
  TRY(files.remove_tree(work / "new"));                       // of a run that was killed
  TRY(files.remove_tree(work / "old"));
  if (const auto filled = fill(work / "new", content, plan, record, files); !filled) {
    TRY(files.remove_tree(work));
    return filled.error();
  }
  if (found != Found::nothing) TRY(files.rename(place, work / "old"));
  TRY(files.rename(work / "new", place));
  TRY(files.sync_folder(parent));
  TRY(files.remove_tree(work));
  return found == Found::nothing ? LinkOutcome::made : LinkOutcome::updated;
}

}  // namespace dspack::reshard
