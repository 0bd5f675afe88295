#include "reshard/verbs/upstream.h"

#include <algorithm>
#include <mutex>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "reshard/run/companions.h"
#include "reshard/verbs/findings.h"

namespace dspack::reshard {
namespace {

constexpr char kWhatElse[] =
    "give --sha256 FILE (lines of sha256sum), or compare the bytes themselves with --source SOURCE";

Result<Declarations> hub_declarations(format::Repository& hub, const format::Manifest& manifest, unsigned jobs,
                                      const std::stop_token& stop) {
  std::vector<std::string> paths;
  for (const format::SourceShard& shard : manifest.source)
    paths.push_back(shard.path);
  for (const format::CompanionFile& companion : manifest.companions) {
    if (const auto name = source_name(companion.path)) paths.push_back(*name);
  }
  Declarations found{.by = hub.description(), .files = {}, .weights = {}};
  std::mutex mutex;
  const auto ask = [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
    const auto declared = hub.declared(paths[i], stop_one);
    if (!declared && declared.error().kind == ErrorKind::not_found) return {};
    if (!declared) return declared.error();
    const std::lock_guard lock(mutex);
    if (*declared) found.files.emplace(paths[i], **declared);
    return {};
  };
  TRY(run_jobs(paths.size(), jobs, ask, stop));
  if (found.files.empty()) {
    return Error{ErrorKind::not_found, fmt::format("{}: declares none of the files that this repository was made from; "
                                                   "is it the right one? Else {}",
                                                   found.by, kWhatElse)};
  }
  return found;
}

/// What is wrong with a rebuilt digest and size, compared with what somebody declares; one line each.
void compare(const std::string& path, const format::Digest& sha256, uint64_t size_bytes, const Declarations& declared,
             bool must_be_declared, Findings& findings) {
  const auto found = declared.files.find(path);
  if (found == declared.files.end()) {
    if (must_be_declared) findings.add(fmt::format("{}: not declared by {}", path, declared.by));
    return;
  }
  const format::DeclaredFile& file = found->second;
  if (file.size_bytes && *file.size_bytes != size_bytes) {
    findings.add(fmt::format("{}: has {} bytes, {} declares {}", path, size_bytes, declared.by, *file.size_bytes));
  }
  if (file.sha256 != sha256) {
    findings.add(
        fmt::format("{}: SHA-256 is {}, {} declares {}", path, to_hex(sha256), declared.by, to_hex(file.sha256)));
  }
}

/// What can be told without reading weights: companions, and weights that are declared and were not packed.
void compare_names(const format::Manifest& manifest, const Declarations& declared, Findings& findings) {
  for (const format::CompanionFile& file : manifest.companions) {
    if (const auto name = source_name(file.path))
      compare(*name, file.sha256, file.size_bytes, declared, false, findings);
  }
  for (const std::string& path : declared.weights) {
    const bool packed = std::any_of(manifest.source.begin(), manifest.source.end(),
                                    [&](const format::SourceShard& shard) { return shard.path == path; });
    if (!packed)
      findings.add(fmt::format("{}: declared by {}, but not a source of this repository", path, declared.by));
  }
}

}  // namespace

Result<std::string> origin_place(const format::Manifest& manifest) {
  const format::Origin& origin = manifest.origin;
  if (origin.kind == "hub") return fmt::format("hf://{}@{}", origin.repository, origin.revision);
  return Error{ErrorKind::invalid,
               fmt::format("packed from a folder, which declares nothing: name a repository with --upstream SOURCE, {}",
                           kWhatElse)};
}

Result<Declarations> declarations_of(format::Repository& source, const format::Manifest& manifest, unsigned jobs,
                                     const std::stop_token& stop) {
  if (source.kind() == format::RepositoryKind::hub) return hub_declarations(source, manifest, jobs, stop);
  const auto list = source.read_text(kChecksumList, kMaxListBytes, stop);
  if (list) return parse_checksum_list(*list, source.locate(kChecksumList));
  if (list.error().kind != ErrorKind::not_found) return list.error();
  return Error{ErrorKind::not_found, fmt::format("{}: a folder without {} declares no digests; {}",
                                                 source.description(), kChecksumList, kWhatElse)};
}

Result<UpstreamReport> verify_upstream(format::Repository& packed, const format::Checkpoint& catalogue,
                                       const std::vector<Declarations>& declared, unsigned jobs,
                                       format::Progress& progress, const std::stop_token& stop) {
  TRY_ASSIGN(const std::vector<ShardImage> images, source_shards(packed, catalogue, stop));
  UpstreamReport report;
  for (const ShardImage& image : images)
    report.bytes += image.size_bytes;
  Findings findings;
  for (const Declarations& list : declared)
    compare_names(*catalogue.manifest(), list, findings);
  std::vector<std::string> lines(images.size());
  progress.started("rebuilding digests", catalogue.payload_bytes(), images.size());
  const format::ByteSink nowhere = [](std::span<const std::byte>) { return Result<void>(); };
  const auto one = [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
    const ShardImage& image = images[i];
    TensorReader reader(packed, catalogue);
    const auto rebuilt = rebuild(image, catalogue, reader, nowhere, progress, stop_one);
    progress.file_done();
    if (!rebuilt && !is_finding(rebuilt.error())) return rebuilt.error();
    Findings mine;
    if (!rebuilt) mine.add(fmt::format("{}: cannot be rebuilt: {}", image.path, rebuilt.error().message));
    if (rebuilt) {
      for (const std::string& line : rebuilt->damaged)
        mine.add(line);
      if (rebuilt->sha256 != image.sha256) {
        mine.add(fmt::format("{}: SHA-256 is {}, the manifest records {}", image.path, to_hex(rebuilt->sha256),
                             to_hex(*image.sha256)));
      }
      for (const Declarations& list : declared)
        compare(image.path, rebuilt->sha256, image.size_bytes, list, true, mine);
    }
    const std::vector<std::string> wrong = mine.sorted();
    for (const std::string& line : wrong)
      findings.add(line);
    if (wrong.empty()) lines[i] = fmt::format("{}: SHA-256 {} rebuilt", image.path, to_hex(rebuilt->sha256));
    return {};
  };
  TRY(run_jobs(images.size(), jobs, one, stop));
  progress.finished();
  std::copy_if(lines.begin(), lines.end(), std::back_inserter(report.shards), [](const auto& l) { return !l.empty(); });
  report.findings = findings.sorted();
  return report;
}

}  // namespace dspack::reshard
