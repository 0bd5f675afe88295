#include "reshard/verbs/seal_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "dspack_version.h"
#include "format/base/parallel.h"
#include "format/cache/cached_repository.h"
#include "format/index.h"
#include "format/json.h"
#include "format/source/local_repository.h"
#include "format/tensor_pass.h"
#include "reshard/run/model_card.h"
#include "reshard/run/seal.h"
#include "reshard/verbs/rebuild.h"

namespace dspack::reshard {
namespace {

using format::CachedRepository;
using format::CacheFolder;
using format::Digest;
using format::Path;
using format::PlannedFile;
using format::WeightCache;

constexpr size_t kNamedFiles = 5;

/// The context of sealing one folder.
struct Job {
  CacheFolder& folder;
  CachedRepository& origin;
  const format::Checkpoint& catalogue;
  WeightCache& cache;
  unsigned jobs;
  format::Progress& progress;
  const std::stop_token& stop;
};

SealOutcome what_is_missing(const WeightCache& cache) {
  SealOutcome outcome;
  for (uint32_t file = 0; file < cache.planned().size(); ++file) {
    const uint64_t missing = cache.missing_bytes(file);
    if (missing == 0) continue;
    ++outcome.missing_files;
    outcome.missing_bytes += missing;
    if (outcome.first.size() < kNamedFiles) outcome.first.push_back(cache.planned()[file].path);
  }
  return outcome;
}

/// Reads a whole file, compares its tensors with their expected digests, and digests it.
Result<FileDigests> digest_file(const Job& job, uint32_t number, const std::stop_token& stop) {
  const PlannedFile& planned = job.cache.planned()[number];
  TRY_ASSIGN(const auto file, format::open_local_source(job.folder.files(), job.cache.path_of(number)));
  std::vector<format::TensorPass::Tensor> passed;
  for (size_t slot = 0; slot < planned.tensors.size(); ++slot) {
    const format::TensorEntry& tensor = job.catalogue.tensors()[planned.tensors[slot]];
    passed.push_back({.range = {planned.offsets[slot], planned.offsets[slot] + tensor.range.size()},
                      .block_bytes = format::row_block_bytes(tensor)});
  }
  format::TensorPass pass(std::move(passed), 0, format::TensorPass::Whole::digested);
  const format::ByteSink take = [&pass](std::span<const std::byte> bytes) -> Result<void> {
    pass.take(bytes);
    return {};
  };
  TRY(file->stream({0, planned.size_bytes}, take, stop));
  format::TensorPass::Sums sums = pass.finish();
  FileDigests digests{.sha256 = sums.whole, .tensors = {}};
  for (size_t slot = 0; slot < planned.tensors.size(); ++slot) {
    const format::TensorEntry& tensor = job.catalogue.tensors()[planned.tensors[slot]];
    TensorDigests result{.whole = sums.tensors[slot].whole, .row_blocks = std::move(sums.tensors[slot].row_blocks)};
    const auto wanted = tensor.digest ? tensor.digest : job.cache.recorded(planned.tensors[slot]);
    if (wanted && *wanted != result.whole) {
      return Error{
          ErrorKind::corrupt,
          fmt::format("{}: tensor \"{}\" differs from what was fetched; remove the file, and let dsrun fetch it again",
                      job.cache.path_of(number).string(), tensor.name)};
    }
    digests.tensors.push_back(std::move(result));
  }
  job.progress.advanced(planned.size_bytes);
  return digests;
}

Result<std::vector<FileDigests>> digest_files(const Job& job) {
  uint64_t bytes = 0;
  for (const PlannedFile& file : job.cache.planned())
    bytes += file.size_bytes;
  job.progress.started("checking", bytes, job.cache.planned().size());
  std::vector<FileDigests> digests(job.cache.planned().size());
  const auto one = [&](uint64_t i, const std::stop_token& stop) -> Result<void> {
    TRY_ASSIGN(digests[i], digest_file(job, static_cast<uint32_t>(i), stop));
    job.progress.item_done();
    return {};
  };
  TRY(run_jobs(digests.size(), job.jobs, one, job.stop));
  job.progress.finished();
  return digests;
}

/// Gives final names to files that were cached by blocks of rows.
Result<void> move_parts(const Job& job, DurableFolders& folders) {
  for (uint32_t file = 0; file < job.cache.planned().size(); ++file) {
    const Path from = job.cache.path_of(file);
    const Path to = job.folder.root() / job.cache.planned()[file].path;
    if (from == to) continue;
    TRY(folders.make(to.parent_path()));
    TRY(job.folder.files().rename(from, to));
    TRY(job.folder.files().sync_folder(to.parent_path()));
  }
  return {};
}

/// SHA-256 of a shard of an ordinary origin, from its header and its tensors, all of which are cached.
Result<Digest> shard_digest(const Job& job, uint32_t shard, const std::stop_token& stop) {
  std::vector<uint32_t> tensors;
  for (uint32_t i = 0; i < job.catalogue.tensors().size(); ++i) {
    if (job.catalogue.tensors()[i].file == shard) tensors.push_back(i);
  }
  const auto range_of = [&](uint32_t tensor) { return job.catalogue.tensors()[tensor].range; };
  std::ranges::sort(tensors, {},
                    [&](uint32_t tensor) { return std::pair(range_of(tensor).begin, range_of(tensor).end); });
  format::Sha256 hash;
  hash.update(format::as_bytes(job.catalogue.files()[shard].header));
  std::vector<std::byte> buffer(format::kReadBytes);
  for (const uint32_t tensor : tensors) {
    for (uint64_t at = 0; at < range_of(tensor).size();) {
      if (stop.stop_requested()) return stopped();
      const auto piece = std::span(buffer).first(std::min<uint64_t>(buffer.size(), range_of(tensor).size() - at));
      TRY(job.cache.read(tensor, at, piece));
      hash.update(piece);
      job.progress.advanced(piece.size());
      at += piece.size();
    }
  }
  return hash.finish();
}

Result<void> seal_ordinary(const Job& job) {
  const Recipe by_expert;
  TRY_ASSIGN(Plan plan, make_plan(by_expert, job.catalogue, {}, FileOrder::of_use));
  TRY_ASSIGN(const std::vector<FileDigests> files, digest_files(job));
  std::vector<std::optional<Digest>> shards(job.catalogue.files().size());
  job.progress.started("digesting source shards", job.catalogue.payload_bytes(), shards.size());
  const auto one = [&](uint64_t i, const std::stop_token& stop) -> Result<void> {
    TRY_ASSIGN(shards[i], shard_digest(job, static_cast<uint32_t>(i), stop));
    job.progress.item_done();
    return {};
  };
  TRY(run_jobs(shards.size(), job.jobs, one, job.stop));
  job.progress.finished();
  DurableFolders folders(job.folder.files(), job.folder.root());
  TRY(move_parts(job, folders));
  RepackOutlook outlook{job.catalogue, std::move(plan), {}, 0};
  TRY_ASSIGN(outlook.companions, find_companions(job.origin, job.jobs, job.stop));
  RepackOptions options;
  options.out = job.folder.root();
  options.jobs = job.jobs;
  return seal_repository({outlook, job.origin, options, shards, files}, folders, job.folder.files(), job.stop);
}

/// Copies a companion of a packed origin, keeping its path.
Result<void> copy_packed_companion(const Job& job, const format::CompanionFile& file, DurableFolders& folders) {
  const Companion companion{.source_path = file.path,
                            .path = file.path,
                            .size_bytes = file.size_bytes,
                            .declared = {declared_sha256(file.sha256, format::kManifestPath)}};
  TRY(copy_companion(companion, job.origin, job.folder.root(), job.folder.files(), folders, job.stop));
  return {};
}

/// The digest of the plan that would repack the origin's own source in the order that files have here.
Result<std::string> original_plan(const Job& job, const Recipe& recipe) {
  const format::Manifest& manifest = *job.catalogue.manifest();
  if (!holds_source_bytes(manifest)) {  // decisions that depend on source weights are only in the origin's plan
    return to_hex(format::sha256(format::canonical_json(
        {{"program", kVersion}, {"recipe", recipe_json(recipe)}, {"regrouped", manifest.plan}})));
  }
  TRY_ASSIGN(const std::vector<ShardImage> shards, source_shards(job.origin, job.catalogue, job.stop));
  std::vector<PlanSource> sources;
  sources.reserve(shards.size());
  for (const ShardImage& shard : shards)
    sources.push_back({shard.path, shard.size_bytes, shard.header});
  return plan_digest(recipe, sources, {}, FileOrder::of_use);
}

/// The origin's manifest, with the files in this folder instead of its own.
Result<format::Manifest> regrouped(const Job& job, const std::vector<FileDigests>& files, DurableFolders& folders) {
  format::Manifest manifest = *job.catalogue.manifest();
  auto parsed = parse_recipe(format::canonical_json(manifest.recipe));
  if (!parsed) return parsed.error().in(job.origin.locate(format::kManifestPath));
  Recipe recipe = std::move(*parsed);  // the origin's, except for the grouping and compression of files
  recipe.by = {};
  recipe.zstd_level.reset();
  std::erase(manifest.requirements, format::kZstdKey);
  manifest.program = fmt::format("dspack {}", kVersion);
  manifest.recipe = recipe_json(recipe);
  TRY_ASSIGN(manifest.plan, original_plan(job, recipe));
  manifest.layouts.clear();
  manifest.files.clear();
  describe_files(manifest, job.cache.planned(), files, job.catalogue, job.catalogue);
  std::vector<format::CompanionFile> companions;
  for (const format::CompanionFile& file : manifest.companions) {
    if (file.path == format::kIndexPath || file.path == "README.md") continue;
    TRY(copy_packed_companion(job, file, folders));
    companions.push_back(file);
  }
  TRY_ASSIGN(const auto source_card, read_source_card(job.folder.root(), job.folder.files()));
  std::vector<std::pair<std::string, std::string>> written{{"README.md", model_card(manifest, recipe, source_card)}};
  if (!unreadable_reason(manifest))
    written.emplace_back(format::kIndexPath, packed_index(job.cache.planned(), job.catalogue));
  for (const auto& [path, text] : written) {
    TRY_ASSIGN(format::CompanionFile file, write_companion(path, text, job.folder.root(), job.folder.files(), folders));
    companions.push_back(std::move(file));
  }
  std::ranges::sort(companions, {}, &format::CompanionFile::path);
  manifest.companions = std::move(companions);
  return manifest;
}

/// Whether the files here are identical to the origin's.
bool are_the_origins(const Job& job, const std::vector<FileDigests>& files) {
  const format::Manifest& manifest = *job.catalogue.manifest();
  if (manifest.files.size() != files.size() || has_requirement(manifest, format::kZstdKey)) return false;
  for (size_t i = 0; i < files.size(); ++i) {
    if (manifest.files[i].path != job.cache.planned()[i].path || manifest.files[i].sha256 != files[i].sha256)
      return false;
  }
  return true;
}

Result<void> seal_packed(const Job& job) {
  TRY_ASSIGN(const std::vector<FileDigests> files, digest_files(job));
  DurableFolders folders(job.folder.files(), job.folder.root());
  TRY(move_parts(job, folders));
  std::string text;
  if (are_the_origins(job, files)) {
    for (const format::CompanionFile& companion : job.catalogue.manifest()->companions)
      TRY(copy_packed_companion(job, companion, folders));
    TRY_ASSIGN(text, job.origin.read_text(format::kManifestPath, format::kManifestDocument.bytes, job.stop));
  } else {
    TRY_ASSIGN(const format::Manifest manifest, regrouped(job, files, folders));
    text = write_manifest(manifest);
  }
  TRY(format::write_sealed(job.folder.files(), job.folder.root() / format::kManifestPath, text));
  return remove_work_folder(job.folder.root(), job.folder.files());
}

}  // namespace

Result<SealOutcome> seal_cache(const Path& folder, const format::RemoteOptions& remote, unsigned jobs,
                               format::FileSystem& files, format::Progress& progress, const std::stop_token& stop) {
  TRY_ASSIGN(const auto manifest, files.stat(folder / format::kManifestPath));
  if (manifest) {  // the run that sealed it may have been killed before the last step
    TRY(files.sync_folder(folder));
    TRY(format::remove_cache_work(files, folder));
    return SealOutcome{.was_sealed = true};
  }
  TRY_ASSIGN(const auto cache_folder, CacheFolder::open(files, folder, ""));
  TRY_ASSIGN(auto repository, open_repository(cache_folder->origin(), remote, files, stop));
  TRY_ASSIGN(const auto origin, CachedRepository::open(std::move(repository), *cache_folder, stop));
  TRY_ASSIGN(const format::Checkpoint catalogue, format::Checkpoint::open(*origin, jobs, stop, &progress));
  {
    TRY_ASSIGN(const auto cache, WeightCache::open(*cache_folder, catalogue, {}));
    SealOutcome outcome = what_is_missing(*cache);
    if (outcome.missing_files != 0) return outcome;
    const Job job{*cache_folder, *origin, catalogue, *cache, jobs, progress, stop};
    TRY(catalogue.manifest() ? seal_packed(job) : seal_ordinary(job));
  }
  TRY(format::remove_cache_work(files, folder));
  return SealOutcome{};
}

}  // namespace dspack::reshard
