#include "reshard/run/output_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/base/size.h"
#include "format/json.h"
#include "format/record_log.h"

namespace dspack::reshard {
namespace {

using format::is_within;
using format::Path;

constexpr WorkKind kKinds[] = {WorkKind::unpack, WorkKind::repack, WorkKind::parts};

const char* kind_text(WorkKind kind) {
  switch (kind) {
    case WorkKind::repack: return "unfinished repacking";
    case WorkKind::parts: return "parts of a repack (with --part; at the end reshard seal)";
    case WorkKind::unpack: return "unfinished unpacking";
  }
  return "";
}

/// Whether the file is a journal with a valid record, or with a damaged one before valid ones. A run makes its first
/// record durable before it creates any file in the output.
Result<bool> has_journal(const Path& path, format::FileSystem& files) {
  const auto text = read_text(files, path, format::kMaxJournalBytes);
  if (!text && text.error().kind == ErrorKind::not_found) return false;
  if (!text) return text.error();
  const format::RecordScan scan = format::scan_records(*text, [](const format::Json&) { return Result<void>(); });
  return scan.valid_bytes > 0 || scan.damage.has_value();
}

/// Whether a run has made the mark. An unpacking's mark is compared as a whole by the run that resumes it.
Result<bool> is_own_mark(const Path& out, WorkKind kind, format::FileSystem& files) {
  const Path mark = work_mark(out, kind);
  if (kind == WorkKind::unpack) return true;
  if (kind == WorkKind::repack) return has_journal(mark, files);
  TRY_ASSIGN(const std::vector<std::string> names, files.list(mark));
  for (const std::string& name : names) {
    TRY_ASSIGN(const bool there, has_journal(mark / name / "journal", files));
    if (there) return true;
  }
  return false;
}

/// Whether no output was made yet: the folder holds only what a run starts with.
Result<bool> has_just_begun(const Path& out, const std::vector<std::string>& names, format::FileSystem& files) {
  if (names.size() != 1 || out / names.front() != work_folder(out)) return false;
  TRY_ASSIGN(const auto info, files.stat(work_folder(out)));
  if (!info || !info->is_directory) return false;
  TRY_ASSIGN(const std::vector<std::string> begun, files.list(work_folder(out)));
  return std::ranges::all_of(begun, [&](const std::string& name) {
    const Path path = work_folder(out) / name;
    return name == kLockName || std::ranges::any_of(kKinds, [&](WorkKind kind) {
             return path == work_mark(out, kind) || path == format::temporary_of(work_mark(out, kind));
           });
  });
}

/// The kind of unfinished work. A journal beside parts belongs to the run that joins them.
Result<std::optional<WorkKind>> work_in(const Path& out, format::FileSystem& files) {
  for (const WorkKind kind : kKinds) {
    TRY_ASSIGN(const auto mark, files.stat(work_mark(out, kind)));
    if (mark) return std::optional(kind);
  }
  return std::optional<WorkKind>();
}

}  // namespace

Path work_mark(const Path& out, WorkKind kind) {
  switch (kind) {
    case WorkKind::repack: return work_folder(out) / "journal";
    case WorkKind::parts: return work_folder(out) / "parts";
    case WorkKind::unpack: return work_folder(out) / "unpack";
  }
  return {};
}

Result<void> check_apart(const format::Repository& source, const Path& out) {
  if (source.kind() != format::RepositoryKind::local || out.empty()) return {};  // a dry run needs no output
  std::error_code unknown;
  const Path from = std::filesystem::weakly_canonical(source.description(), unknown);
  const Path target = std::filesystem::weakly_canonical(std::filesystem::absolute(out, unknown), unknown);
  if (unknown) return {};
  if (is_within(target, from)) {
    return Error{ErrorKind::invalid, fmt::format("{}: lies inside the source {}; choose a folder outside of it",
                                                 out.string(), source.description())};
  }
  if (is_within(from, target)) {
    return Error{ErrorKind::invalid, fmt::format("{}: the source {} lies inside of it; choose a folder apart from it",
                                                 out.string(), source.description())};
  }
  return {};
}

Result<void> check_target(const Path& out, WorkKind kind, format::FileSystem& files) {
  TRY_ASSIGN(const auto info, files.stat(out));
  if (!info) return {};
  if (!info->is_directory) return Error{ErrorKind::conflict, out.string() + ": exists and is not a folder"};
  TRY_ASSIGN(const std::vector<std::string> names, files.list(out));
  TRY_ASSIGN(const auto link, files.read_link(work_folder(out)));
  if (link) {
    return Error{ErrorKind::invalid, work_folder(out).string() +
                                         ": is a symbolic link where a folder of ours belongs; what it leads to is not "
                                         "written to: remove the link"};
  }
  TRY_ASSIGN(const std::optional<WorkKind> there, work_in(out, files));
  if (there && *there != kind) {
    return Error{ErrorKind::conflict, fmt::format("{}: holds {}; complete that with its own command, or choose another "
                                                  "folder",
                                                  out.string(), kind_text(*there))};
  }
  if (names.empty()) return {};
  TRY_ASSIGN(const bool is_own, there ? is_own_mark(out, kind, files) : Result<bool>(false));
  if (is_own) return {};
  TRY_ASSIGN(const bool just_begun, has_just_begun(out, names, files));
  if (just_begun) return {};
  return Error{ErrorKind::conflict,
               out.string() + ": not empty, and not the unfinished work of an earlier run; choose another folder"};
}

Result<std::unique_ptr<format::FileLock>> lock_work_folder(const Path& out, format::LockKind kind,
                                                           format::FileSystem& files) {
  DurableFolders folders(files, out);
  TRY(folders.make(work_folder(out)));  // first of all, so that check_target recognises the folder
  auto lock = files.lock(work_folder(out) / kLockName, kind);
  if (!lock && lock.error().kind == ErrorKind::conflict) {
    return Error{ErrorKind::conflict, fmt::format("{}: another reshard is working on this folder", out.string())};
  }
  return lock;
}

Result<void> remove_work_folder(const Path& out, format::FileSystem& files) {
  const Path work = work_folder(out);
  TRY_ASSIGN(const auto info, files.stat(work));
  if (!info) return {};
  if (info->is_link || !info->is_directory) return {};  // not made by a run
  for (const Path& folder : {part_folder(out), done_folder(out), work_mark(out, WorkKind::parts)})
    TRY(files.remove_tree(folder));
  for (const WorkKind kind : {WorkKind::unpack, WorkKind::repack}) {
    TRY(files.remove_file(format::temporary_of(work_mark(out, kind))));
    TRY(files.remove_file(work_mark(out, kind)));
  }
  TRY(files.remove_file(work / kLockName));
  return files.remove_empty_folder(work);
}

Result<void> check_disk(uint64_t need_bytes, const Path& out, format::FileSystem& files) {
  TRY_ASSIGN(const uint64_t free_bytes, files.free_bytes(out));
  return check_disk(need_bytes, free_bytes, out);
}

Result<void> check_disk(uint64_t need_bytes, uint64_t free_bytes, const Path& out) {
  if (need_bytes <= free_bytes) return {};
  return Error{ErrorKind::budget,
               fmt::format("{}: too little disk: {} are needed, {} are free; {} more are wanted", out.string(),
                           size_words(need_bytes), size_words(free_bytes), exact_size_words(need_bytes - free_bytes))};
}

Result<void> check_free_files(uint64_t need_files, const Path& out, format::FileSystem& files) {
  TRY_ASSIGN(const std::optional<uint64_t> free_files, files.free_files(out));
  if (!free_files || need_files <= *free_files) return {};
  return Error{ErrorKind::budget,
               fmt::format("{}: too few free inodes: {} files and folders are to be made, {} can be ({} more are "
                           "wanted; df -i shows them); group into fewer files, or choose another disk",
                           out.string(), need_files, *free_files, need_files - *free_files)};
}

}  // namespace dspack::reshard
