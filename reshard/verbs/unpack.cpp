#include "reshard/verbs/unpack.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/index.h"
#include "format/kept_headers.h"
#include "reshard/run/output_folder.h"
#include "reshard/verbs/rebuild.h"

namespace dspack::reshard {
namespace {

using format::Json;
using format::Path;

constexpr uint64_t kMaxMarkBytes = 4096;
constexpr uint64_t kBookkeepingFiles = 7;  // the index, mark and lock, and their folders

/// Identifies a run's input and options, so that a different run does not resume with its files.
std::string run_identity(const format::Manifest& manifest, const UnpackOptions& options) {
  return format::canonical_json({{"unpack", 1},
                                 {"manifest", to_hex(format::sha256(write_manifest(manifest)))},
                                 {"exact", options.exact},
                                 {"shard_bytes", options.exact ? 0 : options.shard_bytes}});
}

/// Whether unfinished work with the same identity exists.
Result<bool> has_begun(const Path& out, const std::string& identity, format::FileSystem& files) {
  const auto mark = read_text(files, work_mark(out, WorkKind::unpack), kMaxMarkBytes);
  if (!mark && mark.error().kind == ErrorKind::not_found) return false;
  if (!mark) return mark.error();
  if (*mark == identity) return true;
  return Error{
      ErrorKind::conflict,
      fmt::format("{}: unfinished unpacking of another repository or with other options; give the same command "
                  "again, or remove the folder",
                  out.string())};
}

Result<bool> is_there(const Path& path, uint64_t size_bytes, format::FileSystem& files) {
  TRY_ASSIGN(const auto info, files.stat(path));
  return info && info->is_regular && info->size_bytes == size_bytes;
}

/// Removes the work folder of a run that was killed after it had removed its mark.
Result<void> clear_remains(const Path& out, format::FileSystem& files) {
  TRY_ASSIGN(const auto work, files.stat(work_folder(out)));
  if (!work || work->is_link || !work->is_directory) return {};
  TRY_ASSIGN(const std::vector<std::string> names, files.list(work_folder(out)));
  if (names.size() > 1 || (names.size() == 1 && names.front() != kLockName)) return {};
  const auto lock = lock_work_folder(out, format::LockKind::exclusive, files);
  if (!lock) return lock.error().kind == ErrorKind::conflict ? Result<void>() : lock.error();
  return remove_work_folder(out, files);
}

/// Whether everything to be made exists already, without signs of unfinished work.
Result<bool> is_complete(const UnpackPlan& plan, const Path& out, format::FileSystem& files) {
  TRY_ASSIGN(const auto mark, files.stat(work_mark(out, WorkKind::unpack)));
  if (mark) return false;
  for (const ShardImage& shard : plan.shards) {
    TRY_ASSIGN(const bool there, is_there(out / shard.path, shard.size_bytes, files));
    if (!there) return false;
  }
  for (const Companion& companion : plan.companions) {
    TRY_ASSIGN(const bool there, is_there(out / companion.path, companion.size_bytes, files));
    if (!there) return false;
  }
  return plan.index ? is_there(out / format::kIndexPath, plan.index->size(), files) : Result<bool>(true);
}

/// Makes one shard under .reshard/part; moves it to .reshard/done when it is complete, verified and durable.
class ShardMaker {
 public:
  ShardMaker(format::Repository& packed, const format::Checkpoint& catalogue, Path out, format::FileSystem& files,
             DurableFolders& folders, format::Progress& progress)
      : packed_(packed),
        catalogue_(catalogue),
        out_(std::move(out)),
        files_(files),
        folders_(folders),
        progress_(progress) {}

  Result<void> make(const ShardImage& image, const std::stop_token& stop) const {
    const Path part = part_folder(out_) / image.path;
    const Path target = done_folder(out_) / image.path;
    TRY(folders_.make(part.parent_path()));
    TRY(folders_.make(target.parent_path()));
    {
      TRY_ASSIGN(const auto file, files_.open_write(part, format::OpenMode::truncate));
      TRY(file->resize(image.size_bytes));
      uint64_t at = 0;
      const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
        TRY(file->write(at, bytes));
        at += bytes.size();
        return {};
      };
      TensorReader reader(packed_, catalogue_);
      TRY_ASSIGN(const RebuiltShard rebuilt, rebuild(image, catalogue_, reader, sink, progress_, stop));
      TRY(check(image, rebuilt));
      TRY(file->sync());
    }
    TRY(files_.rename(part, target));
    return files_.sync_folder(target.parent_path());
  }

 private:
  [[nodiscard]] Result<void> check(const ShardImage& image, const RebuiltShard& rebuilt) const {
    if (!rebuilt.damaged.empty()) {
      const size_t more = rebuilt.damaged.size() - 1;
      return Error{ErrorKind::corrupt,
                   fmt::format("{}: {}{}; replace the file and run the command again", packed_.description(),
                               rebuilt.damaged[0], more == 0 ? "" : fmt::format(" (and {} more)", more))};
    }
    if (image.sha256 && rebuilt.sha256 != *image.sha256) {
      return Error{
          ErrorKind::corrupt,
          fmt::format("{}: source shard {} is rebuilt with SHA-256 {}, the manifest records {}: its kept header "
                      "is not the one it had",
                      packed_.locate(format::kHeadersPath), image.path, to_hex(rebuilt.sha256), to_hex(*image.sha256))};
    }
    return {};
  }

  format::Repository& packed_;
  const format::Checkpoint& catalogue_;
  Path out_;
  format::FileSystem& files_;
  DurableFolders& folders_;
  format::Progress& progress_;
};

/// Gives the files in .reshard/done their names in the output. Only now, all at once, so that a run that fails earlier
/// leaves nothing that looks like a checkpoint; after an error here they are moved back.
Result<void> name_files(const std::vector<std::string>& paths, const Path& out, format::FileSystem& files,
                        DurableFolders& folders) {
  std::set<Path> touched;
  const auto name = [&](const std::string& path) -> Result<void> {
    TRY_ASSIGN(const auto waits, files.stat(done_folder(out) / path));
    if (!waits) return {};  // renamed already by a run that was killed here
    TRY(folders.make((out / path).parent_path()));
    touched.insert((out / path).parent_path());
    return files.rename(done_folder(out) / path, out / path);
  };
  const auto name_all = [&]() -> Result<void> {
    for (const std::string& path : paths)
      TRY(name(path));
    for (const Path& folder : touched)
      TRY(files.sync_folder(folder));
    return {};
  };
  const auto named = name_all();
  if (named) return {};
  for (const std::string& path : paths) {
    const auto there = files.stat(out / path);
    if (there && *there && (*there)->is_regular) (void)files.rename(out / path, done_folder(out) / path);
  }
  return named;
}

/// Refuses two files with the same name: one would overwrite the other.
Result<void> check_names(const UnpackPlan& plan) {
  std::set<std::string> taken;
  if (plan.index) taken.insert(format::kIndexPath);
  const auto claim = [&](const std::string& path) -> Result<void> {
    if (taken.insert(path).second) return {};
    return Error{ErrorKind::conflict, fmt::format("{}: two files of the source would have this name", path)};
  };
  for (const ShardImage& shard : plan.shards)
    TRY(claim(shard.path));
  for (const Companion& companion : plan.companions)
    TRY(claim(companion.path));
  return {};
}

}  // namespace

Result<UnpackPlan> prepare_unpack(format::Repository& packed, const format::Checkpoint& catalogue,
                                  const UnpackOptions& options, const std::stop_token& stop) {
  TRY(check_apart(packed, options.out));
  UnpackPlan plan;
  const bool same_model = holds_source_bytes(*catalogue.manifest());
  if (options.exact) {
    TRY_ASSIGN(plan.shards, source_shards(packed, catalogue, stop));
  } else {
    TRY_ASSIGN(const std::vector<WholeTensor> whole, whole_tensors(packed, catalogue, stop));
    plan.shards = plan_shards(catalogue, options.shard_bytes, whole);
    if (plan.shards.size() > 1) plan.index = shard_index(plan.shards, catalogue.payload_bytes());
  }
  for (const format::CompanionFile& file : catalogue.manifest()->companions) {
    const auto name = source_name(file.path);
    // The index of shards that will not be made, or a description of the source if this is another model.
    const bool stale =
        name &&
        ((!options.exact && format::is_index_path(*name)) ||
         (!same_model && std::ranges::find(kSetAside, *name, &SetAside::packed) != std::ranges::end(kSetAside)));
    if (!name || stale) continue;
    plan.companions.push_back(
        {file.path, *name, file.size_bytes, {declared_sha256(file.sha256, format::kManifestPath)}});
  }
  std::stable_partition(plan.companions.begin(), plan.companions.end(),
                        [](const Companion& companion) { return !format::is_index_path(companion.path); });
  TRY(check_names(plan));
  return plan;
}

Result<UnpackOutcome> unpack(const UnpackPlan& plan, format::Repository& packed, const format::Checkpoint& catalogue,
                             const UnpackOptions& options, format::FileSystem& files, format::Progress& progress,
                             const std::stop_token& stop) {
  const Path& out = options.out;
  TRY_ASSIGN(const bool complete, is_complete(plan, out, files));
  if (complete) {
    TRY(clear_remains(out, files));
    return UnpackOutcome::already_there;
  }
  TRY(check_target(out, WorkKind::unpack, files));
  const std::string identity = run_identity(*catalogue.manifest(), options);
  TRY_ASSIGN(const bool begun, has_begun(out, identity, files));

  std::vector<std::string> paths;
  for (const ShardImage& shard : plan.shards)
    paths.push_back(shard.path);
  for (const Companion& companion : plan.companions)
    paths.push_back(companion.path);
  if (plan.index) paths.emplace_back(format::kIndexPath);
  std::vector<const ShardImage*> todo;
  uint64_t tensor_bytes = 0;
  uint64_t need_bytes = plan.index ? plan.index->size() : 0;
  for (const ShardImage& shard : plan.shards) {
    TRY_ASSIGN(const bool named, is_there(out / shard.path, shard.size_bytes, files));
    TRY_ASSIGN(const bool done, is_there(done_folder(out) / shard.path, shard.size_bytes, files));
    if (begun && (named || done)) continue;
    todo.push_back(&shard);
    tensor_bytes += shard.size_bytes - shard.header.size();
    need_bytes += shard.size_bytes;
  }
  for (const Companion& companion : plan.companions)
    need_bytes += companion.size_bytes;
  TRY(check_disk(need_bytes, out, files));
  TRY(check_free_files(todo.size() + plan.companions.size() + kBookkeepingFiles, out, files));

  TRY_ASSIGN(const auto lock, lock_work_folder(out, format::LockKind::exclusive, files));
  TRY_ASSIGN([[maybe_unused]] const bool still_begun,
             has_begun(out, identity, files));  // again under the lock: another run may have started in between
  TRY(files.remove_tree(part_folder(out)));     // shards that an earlier run left incomplete
  TRY(format::write_sealed(files, work_mark(out, WorkKind::unpack), identity));
  const size_t done = plan.shards.size() - todo.size();
  if (done != 0) progress.note(fmt::format("resuming: {} of {} shards are done", done, plan.shards.size()));
  DurableFolders folders(files, out);
  const ShardMaker maker(packed, catalogue, out, files, folders, progress);
  progress.started("unpacking", tensor_bytes, todo.size());
  const auto one = [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
    TRY(maker.make(*todo[i], stop_one));
    progress.item_done();
    return {};
  };
  TRY(run_jobs(todo.size(), options.jobs, one, stop));
  for (const Companion& companion : plan.companions) {
    TRY(fetch_companion(companion, packed, done_folder(out) / companion.path, files, folders, stop));
  }
  TRY(folders.make(done_folder(out)));
  if (plan.index) TRY(format::write_sealed(files, done_folder(out) / format::kIndexPath, *plan.index));
  TRY(name_files(paths, out, files, folders));
  progress.finished();
  TRY(remove_work_folder(out, files));
  return UnpackOutcome::made;
}

}  // namespace dspack::reshard
