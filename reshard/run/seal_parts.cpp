#include "reshard/run/seal_parts.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "reshard/run/output_folder.h"
#include "reshard/run/run_state.h"
#include "reshard/run/tensor_writer.h"

namespace dspack::reshard {
namespace {

using format::OpenMode;
using format::Path;

/// One tensor of a file, and the digest that its bytes must have.
struct DigestedCopy {
  const Copy* copy;
  format::Digest digest;
};

/// One part's share of a file.
struct Share {
  Part part;
  Path path;  // its partial file
  std::vector<DigestedCopy> pieces;
  uint64_t bytes = 0;
  bool is_there = false;
};

/// A file that no part has sealed. Its largest share comes first.
struct Joint {
  Path target;  // the joined partial file
  bool target_is_there = false;
  std::vector<Share> shares;
};

/// The context of a join.
struct Job {
  const Plan& plan;
  const Path& out;
  format::FileSystem& files;
  format::Progress& progress;
  const std::stop_token& stop;
};

Error gone(const Path& path, Part part) {
  return Error{ErrorKind::conflict,
               fmt::format("{}: is missing, though part {} has made it; if that part ran elsewhere, copy it from there",
                           path.string(), to_string(part))};
}

/// Files that parts have sealed must exist: folders may have been merged from several machines.
Result<std::set<uint64_t>> sealed_files(const Job& job, const std::vector<LoadedPart>& parts) {
  const RunScope whole = whole_scope(job.plan, job.out);
  std::set<uint64_t> sealed;
  for (const LoadedPart& loaded : parts) {
    for (const auto& [file, record] : loaded.state.files) {
      const Path path = final_path(job.plan, whole, job.plan.files[file]);
      TRY_ASSIGN(const auto info, job.files.stat(path));
      const uint64_t size_bytes = record.zstd ? record.zstd->size_bytes : job.plan.files[file].size_bytes;
      if (!info || info->size_bytes != size_bytes) return gone(path, loaded.part);
      sealed.insert(file);
    }
  }
  return sealed;
}

/// The shares of all unsealed files, by file.
std::map<uint32_t, std::vector<Share>> shares_of(const Job& job, const std::vector<LoadedPart>& parts,
                                                 const std::set<uint64_t>& sealed) {
  std::map<uint32_t, std::vector<Share>> shares;
  for (const LoadedPart& loaded : parts) {
    const RunScope scope = part_scope(job.plan, job.out, loaded.part);
    for (const auto& [shard, record] : loaded.state.shards) {
      for (size_t i = 0; i < record.tensors.size(); ++i) {
        const Copy& copy = job.plan.shards[shard][i];
        if (copy.file == kNoFile || sealed.contains(copy.file)) continue;
        std::vector<Share>& of_file = shares[copy.file];
        if (of_file.empty() || of_file.back().part != loaded.part)
          of_file.push_back({loaded.part, partial_path(scope, job.plan.files[copy.file]), {}, 0, false});
        of_file.back().pieces.push_back({&copy, record.tensors[i].whole});
        of_file.back().bytes += copy.bytes;
      }
    }
  }
  return shares;
}

/// Locates all shares before anything is moved. A share whose file is missing is the one that a killed call has renamed
/// to start the joined file.
Result<std::vector<Joint>> find_joints(const Job& job, const std::vector<LoadedPart>& parts) {
  TRY_ASSIGN(const std::set<uint64_t> sealed, sealed_files(job, parts));
  const RunScope whole = whole_scope(job.plan, job.out);
  std::vector<Joint> joints;
  for (auto& [file, shares] : shares_of(job, parts, sealed)) {
    Joint joint{partial_path(whole, job.plan.files[file]), false, std::move(shares)};
    std::ranges::stable_sort(joint.shares, std::greater(), &Share::bytes);
    TRY_ASSIGN(const auto target, job.files.stat(joint.target));
    joint.target_is_there = target.has_value();
    size_t away = 0;
    for (Share& share : joint.shares) {
      TRY_ASSIGN(const auto info, job.files.stat(share.path));
      share.is_there = info.has_value();
      away += share.is_there ? 0 : 1;
    }
    // Renamed by its only part, which was killed before recording that: the resumed run finds it.
    TRY_ASSIGN(const auto final_info, job.files.stat(final_path(job.plan, whole, job.plan.files[file])));
    if (joint.shares.size() == 1 && away == 1 && final_info) continue;
    if (away > (joint.target_is_there ? 1 : 0)) {
      const auto lost = std::ranges::find(joint.shares, false, &Share::is_there);
      return gone(lost->path, lost->part);
    }
    joints.push_back(std::move(joint));
  }
  return joints;
}

/// Reads a share, compares it with what its part wrote, and copies it into `target`; nullptr: compares only.
Result<void> pass(const Job& job, const Share& share, const Path* target, BackgroundWriter& writer) {
  TRY_ASSIGN(const auto from, job.files.open_read(share.path));
  std::vector<std::byte> buffer(format::kReadBytes);
  for (const DigestedCopy& piece : share.pieces) {
    TensorTarget into;
    if (target != nullptr) {
      TRY_ASSIGN(into.file, job.files.open_write(*target, OpenMode::keep));
    }
    TensorWriter tensor(into, piece.copy->offset, 0, writer, nullptr);
    const uint64_t end = piece.copy->offset + piece.copy->bytes;
    for (uint64_t at = piece.copy->offset; at < end;) {
      if (job.stop.stop_requested()) return stopped();
      const auto bytes = std::span(buffer).first(std::min<uint64_t>(buffer.size(), end - at));
      TRY(from->read(at, bytes));
      TRY(tensor.write(bytes));
      at += bytes.size();
      job.progress.advanced(bytes.size());
    }
    TRY_ASSIGN(const TensorDigests digests, tensor.finish());
    if (digests.whole == piece.digest) continue;
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: tensor \"{}\" differs from what part {} wrote; if the file was copied here, "
                             "copy it again, else remove {} and start again",
                             share.path.string(),
                             job.plan.result.tensors()[job.plan.files[piece.copy->file].tensors[piece.copy->slot]].name,
                             to_string(share.part), job.out.string())};
  }
  return {};
}

/// The largest share becomes the file that the others are copied into. It is compared first, while its part's file can
/// still be replaced.
Result<void> begin_with_largest(const Job& job, const Joint& joint, DurableFolders& folders, BackgroundWriter& writer) {
  const Share& largest = joint.shares.front();
  TRY(pass(job, largest, nullptr, writer));
  TRY(folders.make(joint.target.parent_path()));
  TRY(job.files.rename(largest.path, joint.target));
  return {};
}

Result<void> join(const Job& job, const Joint& joint, DurableFolders& folders, BackgroundWriter& writer) {
  const bool begins = !joint.target_is_there;
  if (begins) TRY(begin_with_largest(job, joint, folders, writer));
  for (size_t i = begins ? 1 : 0; i < joint.shares.size(); ++i) {
    if (joint.shares[i].is_there) TRY(pass(job, joint.shares[i], &joint.target, writer));
  }
  TRY_ASSIGN(const auto whole, job.files.open_write(joint.target, OpenMode::keep));
  TRY(whole->sync());
  return job.files.sync_folder(joint.target.parent_path());
}

/// Bytes of shares that are copied, not renamed.
uint64_t copied_bytes(const std::vector<Joint>& joints) {
  uint64_t bytes = 0;
  for (const Joint& joint : joints) {
    for (size_t i = joint.target_is_there ? 0 : 1; i < joint.shares.size(); ++i)
      bytes += joint.shares[i].is_there ? joint.shares[i].bytes : 0;
  }
  return bytes;
}

/// `parts`: all of one count, all done. Afterwards every file of the plan is sealed by a part, or is complete and
/// durable at the path where a run of one process keeps partial files.
Result<void> join_parts(const Plan& plan, const std::vector<LoadedPart>& parts, const Path& out,
                        format::FileSystem& files, format::Progress& progress, const std::stop_token& stop) {
  const Job job{plan, out, files, progress, stop};
  TRY_ASSIGN(const std::vector<Joint> joints, find_joints(job, parts));
  TRY(check_disk(copied_bytes(joints), out, files));
  uint64_t bytes = 0;
  for (const Joint& joint : joints) {
    for (const Share& share : joint.shares)
      bytes += share.is_there ? share.bytes : 0;
  }
  progress.started("joining", bytes, joints.size());
  DurableFolders folders(files, out);
  BackgroundWriter writer;
  for (const Joint& joint : joints) {
    TRY(join(job, joint, folders, writer));
    progress.item_done();
  }
  progress.finished();
  return {};
}

/// The work that is left before parts can be joined, in words; empty: none.
std::string unfinished_text(const std::vector<LoadedPart>& parts) {
  if (parts.empty()) return "no part was started";
  const uint32_t count = parts.front().part.count;
  constexpr size_t kNamed = 5;
  std::vector<std::string> words;
  size_t next = 0;
  for (uint32_t number = 1; number <= count; ++number) {
    if (next == parts.size() || parts[next].part.number != number) {
      words.push_back(fmt::format("part {}/{} was not started here", number, count));
      continue;
    }
    const LoadedPart& loaded = parts[next++];
    if (!loaded.is_done())
      words.push_back(fmt::format("part {}/{} has {} of its {} source shards left", number, count,
                                  loaded.shards - loaded.state.shards.size(), loaded.shards));
  }
  const size_t more = words.size() > kNamed ? words.size() - kNamed : 0;
  words.resize(words.size() - more);
  return fmt::format("{}{}", fmt::join(words, ", "), more == 0 ? "" : fmt::format(", and {} more", more));
}

/// The journal of a single process that has done the work of all parts.
std::string joint_journal(const format::Json& identity, const std::vector<LoadedPart>& parts) {
  std::string text = journal_line(identity);
  std::vector<FileSealed> sealed;
  for (const LoadedPart& loaded : parts) {
    for (const auto& [shard, record] : loaded.state.shards)
      text += journal_line(record);
    for (const auto& [file, record] : loaded.state.files)
      sealed.push_back(record);
  }
  if (!sealed.empty()) text += journal_line(sealed);
  return text;
}

/// Turns the work of the parts into that of one process, unless that was done before.
Result<void> join_work(const RepackOutlook& outlook, const format::Repository& repository, const Path& out,
                       format::FileSystem& files, format::Progress& progress, const std::stop_token& stop) {
  const format::Json identity = run_identity(outlook, repository);
  const RunScope scope = whole_scope(outlook.plan, out);
  TRY_ASSIGN(const JournalLoaded joint, load_journal(scope, identity, outlook.plan, files));
  if (joint.valid_bytes == 0) {
    TRY_ASSIGN(const std::vector<LoadedPart> parts, load_parts(outlook, repository, out, files));
    if (const std::string text = unfinished_text(parts); !text.empty()) {
      return Error{ErrorKind::conflict,
                   fmt::format("{}: is not complete: {}; run the command of that part, then reshard seal again",
                               out.string(), text)};
    }
    TRY(join_parts(outlook.plan, parts, out, files, progress, stop));
    TRY(format::write_sealed(files, journal_path(scope), joint_journal(identity, parts)));
  } else if (joint.state.shards.size() != scope.shards.size()) {
    return Error{ErrorKind::conflict,
                 fmt::format("{}: is not complete: {} of {} source shards are left; the command that began it resumes",
                             out.string(), scope.shards.size() - joint.state.shards.size(), scope.shards.size())};
  }
  // Only now: the parts' files are needed until the journal covers all of them.
  return files.remove_tree(work_mark(out, WorkKind::parts));
}

}  // namespace

Result<RepackOutcome> seal_parts(const RepackOutlook& outlook, format::Repository& repository,
                                 const RepackOptions& options, format::FileSystem& files, format::Progress& progress,
                                 const std::stop_token& stop) {
  TRY_ASSIGN(const bool complete, is_complete(options.out, outlook.plan, repository, files));
  if (complete) return finish_complete(options.out, files);
  const auto lock = lock_work_folder(options.out, format::LockKind::exclusive, files);
  if (!lock) return lock.error();
  TRY_ASSIGN(const bool completed_meanwhile, is_complete(options.out, outlook.plan, repository, files));
  if (completed_meanwhile) return finish_complete(options.out, files);
  TRY(join_work(outlook, repository, options.out, files, progress, stop));
  TRY(complete_run(outlook, repository, options, files, progress, stop));
  return RepackOutcome::made;
}

}  // namespace dspack::reshard
