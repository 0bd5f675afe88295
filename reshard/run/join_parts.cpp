#include "reshard/run/join_parts.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "reshard/run/output_folder.h"
#include "reshard/run/tensor_writer.h"

namespace dspack::reshard {
namespace {

using format::OpenMode;
using format::Path;

/// One tensor of a file, and what its bytes must be.
struct Piece {
  const Copy* copy;
  format::Digest digest;
};

/// What one part has of a file.
struct Share {
  Part part;
  Path path;  // its partial file
  std::vector<Piece> pieces;
  uint64_t bytes = 0;
  bool is_there = false;
};

/// A file that no part has sealed. The largest share comes first.
struct Joint {
  Path target;  // the partial file of all
  bool target_is_there = false;
  std::vector<Share> shares;
};

/// What the joining works with.
struct Job {
  const Plan& plan;
  const Path& out;
  format::FileSystem& files;
  format::Progress& progress;
  const std::stop_token& stop;
};

Error gone(const Path& path, Part part) {
  return Error{
      ErrorKind::conflict,
      fmt::format("{}: is not here, though part {} has made it; if that part ran elsewhere, copy it from there",
                  path.string(), to_string(part))};
}

/// Files that parts have sealed must be here: folders may have been put together from several machines.
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

/// The shares of all files that are not sealed, by file.
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

/// Looks where everything lies before anything is moved. A share whose file is away is the one that the joint file was
/// begun with by a call that was killed.
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
    // Renamed by its only part, which was killed before it could say so: what goes on from here finds it.
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

/// Reads what a share has, compares it with what its part wrote, and copies it into `target`; nullptr: nowhere.
Result<void> pass(const Job& job, const Share& share, const Path* target, BackgroundWriter& writer) {
  TRY_ASSIGN(const auto from, job.files.open_read(share.path));
  std::vector<std::byte> buffer(format::kReadBytes);
  for (const Piece& piece : share.pieces) {
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
                 fmt::format("{}: tensor \"{}\" does not read as part {} has written it; if the file was copied here, "
                             "copy it again, else remove {} and begin anew",
                             share.path.string(),
                             job.plan.result.tensors()[job.plan.files[piece.copy->file].tensors[piece.copy->slot]].name,
                             to_string(share.part), job.out.string())};
  }
  return {};
}

/// The largest share becomes the file that the others are copied into. It is compared before, while its part's file can
/// still be put right.
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

/// Bytes of shares that are copied, as opposed to renamed.
uint64_t copied_bytes(const std::vector<Joint>& joints) {
  uint64_t bytes = 0;
  for (const Joint& joint : joints) {
    for (size_t i = joint.target_is_there ? 0 : 1; i < joint.shares.size(); ++i)
      bytes += joint.shares[i].is_there ? joint.shares[i].bytes : 0;
  }
  return bytes;
}

}  // namespace

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
    progress.file_done();
  }
  progress.finished();
  return {};
}

}  // namespace dspack::reshard
