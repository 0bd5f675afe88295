#include "reshard/publish/publish_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "format/index.h"
#include "format/manifest.h"

namespace dspack::reshard {
namespace {

constexpr std::string_view kAttributes = ".gitattributes";  // written by the Hub itself

/// The difference in words; empty: none.
std::string difference_of(const LocalFile& file, const format::HubFile& there) {
  if (there.size_bytes != file.size_bytes)
    return fmt::format("has {} bytes there, {} here", there.size_bytes, file.size_bytes);
  if (there.sha256) return *there.sha256 == file.sha256 ? "" : "has another SHA-256 there";
  return there.blob == file.blob ? "" : "has other content there";
}

/// Fills commits in order, each up to the limits.
class Filling {
 public:
  Filling(const std::vector<LocalFile>& local, const CommitLimits& limits) : local_(local), limits_(limits) {}

  void add(const PendingFile& pending) {
    const uint64_t bytes = pending.large ? 0 : local_[pending.file].size_bytes;
    make_room(bytes);
    commits_.back().files.push_back(pending);
    bytes_ += bytes;
  }
  void remove(const std::string& path) {
    make_room(0);
    commits_.back().deleted.push_back(path);
  }
  [[nodiscard]] std::vector<PlannedCommit> take() { return std::move(commits_); }

 private:
  void make_room(uint64_t bytes) {
    const bool fits = !commits_.empty() &&
                      commits_.back().files.size() + commits_.back().deleted.size() < limits_.operations &&
                      bytes_ + bytes <= limits_.regular_bytes;
    if (fits) return;
    commits_.emplace_back();
    bytes_ = 0;
  }

  const std::vector<LocalFile>& local_;
  const CommitLimits& limits_;
  std::vector<PlannedCommit> commits_;
  uint64_t bytes_ = 0;  // content in the last commit
};

uint64_t regular_bytes(const std::vector<LocalFile>& local, const std::vector<PendingFile>& pending) {
  uint64_t bytes = 0;
  for (const PendingFile& file : pending)
    bytes += file.large ? 0 : local[file.file].size_bytes;
  return bytes;
}

}  // namespace

ListingDifference compare(const std::vector<LocalFile>& local, const format::HubTree& remote) {
  ListingDifference difference;
  auto there = remote.begin();
  const auto extra_before = [&](const LocalFile* file) {
    for (; there != remote.end() && (file == nullptr || there->first < file->path); ++there) {
      if (there->first == kAttributes) continue;
      difference.extra.push_back(there->first);
      difference.findings.push_back(there->first + ": is there, and not in the folder");
    }
  };
  for (size_t i = 0; i < local.size(); ++i) {  // both are sorted by path
    extra_before(&local[i]);
    const bool present = there != remote.end() && there->first == local[i].path;
    const std::string finding = present ? difference_of(local[i], there->second) : "is missing there";
    if (present) ++there;
    if (finding.empty()) continue;
    difference.to_send.push_back(i);
    difference.findings.push_back(fmt::format("{}: {}", local[i].path, finding));
  }
  extra_before(nullptr);
  return difference;
}

std::vector<std::string> foreign(const std::vector<std::string>& extra) {
  std::vector<std::string> found;
  std::ranges::copy_if(extra, std::back_inserter(found), [](const std::string& path) {
    return !path.starts_with("model/") && !path.starts_with("provenance/");
  });
  return found;
}

bool is_sealing(std::string_view path) {
  return path == format::kManifestPath || path == format::kIndexPath || path == "README.md";
}

std::vector<PlannedCommit> plan_commits(const std::vector<LocalFile>& local, const std::vector<PendingFile>& pending,
                                        const std::vector<std::string>& extra, bool sealed,
                                        const CommitLimits& limits) {
  if (pending.empty() && extra.empty()) return {};
  if (pending.size() + extra.size() <= limits.operations && regular_bytes(local, pending) <= limits.regular_bytes)
    return {{.files = pending, .deleted = extra, .seals = true}};
  std::vector<PlannedCommit> commits;
  if (sealed) {
    commits.push_back({.files = {}, .deleted = foreign(extra), .seals = false});
    commits.back().deleted.emplace_back(format::kManifestPath);
  }
  Filling filling(local, limits);
  for (const std::string& path : extra) {
    if (!sealed || foreign({path}).empty()) filling.remove(path);
  }
  PlannedCommit last{.files = {}, .deleted = {}, .seals = true};
  for (const PendingFile& file : pending) {
    if (is_sealing(local[file.file].path)) {
      last.files.push_back(file);
    } else {
      filling.add(file);
    }
  }
  for (PlannedCommit& commit : filling.take())
    commits.push_back(std::move(commit));
  commits.push_back(std::move(last));
  return commits;
}

}  // namespace dspack::reshard
