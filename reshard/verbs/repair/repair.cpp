#include "reshard/verbs/repair/repair.h"

#include <algorithm>
#include <map>
#include <optional>

#include <zstd.h>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "format/index.h"
#include "format/kept_headers.h"
#include "reshard/run/changed_config.h"
#include "reshard/run/companions.h"
#include "reshard/run/model_card.h"
#include "reshard/run/scatter.h"
#include "reshard/run/source_facts.h"
#include "reshard/run/tensor_reader.h"
#include "reshard/verbs/repair/mender.h"
#include "reshard/verbs/verify.h"

namespace dspack::reshard {
namespace {

using format::Checkpoint;
using format::CompanionFile;
using format::Manifest;
using format::Path;
using format::TensorEntry;

// The files of a packed repository that hold no weights: the source's are copied again, dspack's own are made again,
// and each gets its name once it has its digest. A file that cannot be restored is a finding.

/// The sources of companions; nullptr: not available.
struct CompanionSource {
  const format::Checkpoint* packed = nullptr;  // catalogue of the damaged repository
  format::Repository* repository = nullptr;
  const format::Checkpoint* catalogue = nullptr;  // catalogue of `repository`
  const Plan* plan = nullptr;                     // plan of the whole repository; set for an ordinary source
};

/// Which parts of the source must be opened to restore the damaged companions.
struct CompanionNeeds {
  bool repository = false;
  bool catalogue = false;  // also the plan
};

constexpr char kCardPath[] = "README.md";

Result<bool> fits(const CompanionFile& wanted, const Path& out, Scrutiny scrutiny, format::FileSystem& files,
                  const std::stop_token& stop) {
  const Path path = out / wanted.path;
  TRY_ASSIGN(const auto info, files.stat(path));
  if (!info || !info->is_regular || info->size_bytes != wanted.size_bytes) return false;
  if (scrutiny == Scrutiny::outside) return true;
  const auto digest = digest_of_file(path, files, stop);
  if (!digest && !is_finding(digest.error())) return digest.error();
  return digest.has_value() && *digest == wanted.sha256;
}

/// The index of the files as they are: stored names only, without aliases.
std::string index_of(const format::Checkpoint& packed) {
  format::Json map = format::Json::object();
  for (const format::TensorEntry& tensor : packed.tensors()) {
    if (!tensor.is_alias) map[tensor.name] = packed.files()[tensor.file].path;
  }
  return format::hub_index(packed.manifest()->coverage.payload_bytes, std::move(map));
}

/// Restores companions, one at a time.
class Maker {
 public:
  Maker(const CompanionSource& source, const Path& out, const Recipe& recipe, format::FileSystem& files,
        DurableFolders& folders, const std::stop_token& stop)
      : source_(source),
        manifest_(*source.packed->manifest()),
        out_(out),
        recipe_(recipe),
        files_(files),
        folders_(folders),
        stop_(stop) {}

  /// The reason why it could not be restored; empty: it was.
  Result<std::string> make(const CompanionFile& wanted) const {
    const bool from_copy = source_.catalogue != nullptr && source_.catalogue->manifest().has_value();
    if (from_copy && holds(*source_.catalogue->manifest(), wanted)) return copy(wanted.path, wanted);
    if (wanted.path == kCardPath || wanted.path == format::kIndexPath) return write(wanted);
    if (from_copy) return std::string("that of the other packed repository differs");
    const auto name = source_name(wanted.path, manifest_);
    return name ? copy(*name, wanted) : write(wanted);
  }

 private:
  static bool holds(const Manifest& manifest, const CompanionFile& wanted) {
    const auto found = std::ranges::find(manifest.companions, wanted.path, &CompanionFile::path);
    return found != manifest.companions.end() && found->sha256 == wanted.sha256;
  }

  Result<std::string> copy(const std::string& from, const CompanionFile& wanted) const {
    const Companion companion{.source_path = from,
                              .path = wanted.path,
                              .size_bytes = wanted.size_bytes,
                              .declared = {declared_sha256(wanted.sha256, format::kManifestPath)}};
    const auto copied = copy_companion(companion, *source_.repository, out_, files_, folders_, stop_);
    if (copied) return std::string();
    const bool not_there = copied.error().kind == ErrorKind::not_found || copied.error().kind == ErrorKind::corrupt;
    return not_there ? Result<std::string>(copied.error().message) : copied.error();
  }

  Result<std::string> write(const CompanionFile& wanted) const {
    TRY_ASSIGN(const std::optional<std::string> text, text_of(wanted.path));
    if (!text || format::sha256(*text) != wanted.sha256)
      return fmt::format("it was made by another version ({})", manifest_.program);
    TRY(write_companion(wanted.path, *text, out_, files_, folders_));
    return std::string();
  }

  Result<std::optional<std::string>> text_of(const std::string& path) const {
    if (path == format::kIndexPath) return std::optional(index_of(*source_.packed));
    if (path == kCardPath) {
      TRY_ASSIGN(const auto source_card, read_source_card(out_, files_));
      return std::optional(model_card(manifest_, recipe_, source_card));
    }
    if (path == format::kHeadersPath) {
      TRY_ASSIGN(std::string headers, format::kept_headers(*source_.catalogue));
      return std::optional(std::move(headers));
    }
    if (path == kConfigPath) return changed_config(*source_.plan, *source_.repository, stop_);
    return std::optional<std::string>();
  }

  const CompanionSource& source_;
  const Manifest& manifest_;
  const Path& out_;
  const Recipe& recipe_;
  format::FileSystem& files_;
  DurableFolders& folders_;
  const std::stop_token& stop_;
};

/// The manifest's companions that are missing or differ, by path.
Result<std::vector<CompanionFile>> damaged_companions(const Manifest& manifest, const Path& out, Scrutiny scrutiny,
                                                      unsigned jobs, format::FileSystem& files,
                                                      const std::stop_token& stop) {
  std::vector<uint8_t> fit(manifest.companions.size(), 0);
  const auto one = [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
    TRY_ASSIGN(fit[i], fits(manifest.companions[i], out, scrutiny, files, stop_one));
    return {};
  };
  TRY(run_jobs(fit.size(), jobs, one, stop));
  std::vector<CompanionFile> damaged;
  for (size_t i = 0; i < fit.size(); ++i) {
    if (fit[i] == 0) damaged.push_back(manifest.companions[i]);
  }
  return damaged;
}

CompanionNeeds needs_of(const std::vector<CompanionFile>& damaged, const Manifest& manifest) {
  CompanionNeeds needs;
  for (const CompanionFile& file : damaged) {
    if (file.path == kCardPath || file.path == format::kIndexPath) continue;  // determined by the manifest alone
    needs.repository = true;
    const bool of_all = file.path == format::kHeadersPath || !source_name(file.path, manifest);
    needs.catalogue = needs.catalogue || of_all;
  }
  return needs;
}

/// Returns one line per companion that could not be restored.
Result<std::vector<std::string>> mend_companions(const std::vector<CompanionFile>& damaged,
                                                 const CompanionSource& source, const Path& out, const Recipe& recipe,
                                                 format::FileSystem& files, DurableFolders& folders,
                                                 const std::stop_token& stop) {
  const Maker maker(source, out, recipe, files, folders, stop);
  std::vector<CompanionFile> order = damaged;
  // The card comes last: it is made from the source's card.
  std::stable_partition(order.begin(), order.end(), [](const CompanionFile& file) { return file.path != kCardPath; });
  std::vector<std::string> left;
  for (const CompanionFile& file : order) {
    TRY_ASSIGN(const std::string why, maker.make(file));
    if (!why.empty()) left.push_back(fmt::format("{}: {}", file.path, why));
  }
  return left;
}

/// The damage of a complete repository.
struct FoundDamage {
  std::vector<FileDamage> files;
  std::vector<CompanionFile> companions;
  [[nodiscard]] bool none() const { return files.empty() && companions.empty(); }
  [[nodiscard]] bool lacks_tensors() const {
    return std::ranges::any_of(files, [](const FileDamage& file) { return !file.slots.empty(); });
  }
};

/// The facts that the recipe took from the source's weights, derived from the result without reading weights.
Result<SourceFacts> recorded_facts(const Recipe& recipe, const Checkpoint& packed, const Checkpoint& source,
                                   format::Repository& repository, const std::stop_token& stop) {
  SourceFacts facts;
  if (recipe.drop_mtp) {
    TRY_ASSIGN(facts.decoder_layers, decoder_layers(repository, stop));
  }
  const auto index_of = [&source](const std::string& name) -> std::optional<uint32_t> {
    const TensorEntry* found = source.find(name);
    if (found == nullptr) return std::nullopt;
    return static_cast<uint32_t>(found - source.tensors().data());
  };
  std::map<std::string, std::vector<uint32_t>> alike;  // by the name that they are stored under
  for (const auto& [alias, stored] : packed.manifest()->aliases) {
    const auto first = index_of(stored);
    const auto second = index_of(alias);
    if (!first || !second) continue;
    auto& group = alike[stored];
    if (group.empty()) group.push_back(*first);
    group.push_back(*second);
  }
  for (auto& [stored, group] : alike)
    facts.alike.push_back(std::move(group));
  for (const TensorEntry& tensor : packed.tensors()) {
    if (tensor.dtype != Dtype::f8_e8m0) continue;
    if (const auto scales = index_of(tensor.name)) facts.exact_scales.insert(*scales);
  }
  return facts;
}

/// The place to fetch from, opened as far as needed.
struct Opened {
  std::unique_ptr<format::Repository> repository;
  std::optional<Checkpoint> catalogue;
  std::optional<Plan> plan;  // plan of the whole repository; set for an ordinary source
  [[nodiscard]] bool is_packed() const { return catalogue && catalogue->manifest().has_value(); }
};

/// A packed place is described by its manifest; an ordinary one's headers are read only if something needs them.
Result<Opened> open_needed(const Checkpoint& packed, const Recipe& recipe, bool needs_catalogue,
                           const RepairOptions& options, const OpenSource& open_source, format::Progress& progress,
                           const std::stop_token& stop) {
  Opened opened;
  TRY_ASSIGN(opened.repository, open_source());
  TRY(check_apart(*opened.repository, options.folder));
  const auto manifest = opened.repository->open(format::kManifestPath, stop);
  if (!manifest && manifest.error().kind != ErrorKind::not_found) return manifest.error();
  if (!manifest && !needs_catalogue) return opened;
  TRY_ASSIGN(opened.catalogue, Checkpoint::open(*opened.repository, options.jobs, stop, &progress));
  if (opened.is_packed()) return opened;
  TRY_ASSIGN(const SourceFacts facts, recorded_facts(recipe, packed, *opened.catalogue, *opened.repository, stop));
  auto plan = make_plan(recipe, *opened.catalogue, facts);
  if (!plan) {
    return plan.error().in(
        fmt::format("{}: is not what {} was packed from", opened.repository->description(), options.folder.string()));
  }
  opened.plan = std::move(*plan);
  return opened;
}

/// Copies compressed files that the other packed repository stores identically, without compressing them again. Returns
/// the remaining damage.
Result<std::vector<FileDamage>> copy_stored(const WantedFiles& wanted, const Manifest& manifest,
                                            std::vector<FileDamage> damage, const Opened& opened,
                                            format::FileSystem& files, DurableFolders& folders,
                                            format::Progress& progress, const std::stop_token& stop) {
  std::map<std::string_view, const format::PackedFile*> others;
  for (const format::PackedFile& file : opened.catalogue->manifest()->files)
    others.emplace(file.path, &file);
  std::vector<FileDamage> rest;
  for (FileDamage& file : damage) {
    const format::StoredFile stored = stored_file(manifest.files[file.file]);
    const auto other = others.find(manifest.files[file.file].path);
    const bool same = wanted.files[file.file].is_compressed && other != others.end() &&
                      stored_file(*other->second).sha256 == stored.sha256;
    if (!same) {
      rest.push_back(std::move(file));
      continue;
    }
    const Companion companion{.source_path = stored.path,
                              .path = stored.path,
                              .size_bytes = stored.size_bytes,
                              .declared = {declared_sha256(stored.sha256, format::kManifestPath)}};
    TRY(copy_companion(companion, *opened.repository, wanted.out, files, folders, stop));
    TRY(files.remove_file(wanted.part_path(file.file)));
    progress.advanced(stored.size_bytes);
  }
  return rest;
}

Result<void> mend(const Checkpoint& packed, const Recipe& recipe, const WantedFiles& wanted, const FoundDamage& found,
                  const RepairOptions& options, const OpenSource& open_source, format::FileSystem& files,
                  RepairReport& report, format::Progress& progress, const std::stop_token& stop) {
  DurableFolders folders(files, options.folder);
  const CompanionNeeds needs = needs_of(found.companions, *packed.manifest());
  Opened opened;
  if (found.lacks_tensors() || needs.repository) {
    TRY_ASSIGN(opened, open_needed(packed, recipe, found.lacks_tensors() || needs.catalogue, options, open_source,
                                   progress, stop));
  }
  std::vector<FileDamage> damage = found.files;
  if (opened.is_packed()) {
    TRY_ASSIGN(damage,
               copy_stored(wanted, *packed.manifest(), std::move(damage), opened, files, folders, progress, stop));
  }
  Plan ways;
  if (opened.catalogue) {
    const std::string place = opened.repository->description();
    TRY_ASSIGN(ways, opened.is_packed() ? ways_from_packed(*opened.catalogue, wanted, damage, place)
                                        : ways_from_source(*opened.plan, wanted, damage, place));
  }
  const Checkpoint nothing;
  TRY(mend_files(wanted, damage, ways, opened.catalogue ? *opened.catalogue : nothing, opened.repository.get(),
                 options.jobs, files, report, progress, stop));
  const CompanionSource source{.packed = &packed,
                               .repository = opened.repository.get(),
                               .catalogue = opened.catalogue ? &*opened.catalogue : nullptr,
                               .plan = opened.plan ? &*opened.plan : nullptr};
  TRY_ASSIGN(report.left, mend_companions(found.companions, source, options.folder, recipe, files, folders, stop));
  return {};
}

}  // namespace

Result<void> check_room(const WantedFiles& wanted, const std::vector<FileDamage>& damage, format::FileSystem& files) {
  uint64_t bytes = 0;
  for (const FileDamage& file : damage) {
    const uint64_t raw = wanted.files[file.file].planned.size_bytes;
    const bool lies_there = file.remains == Remains::raw_final || file.remains == Remains::partial;
    bytes += (lies_there ? 0 : raw) + (wanted.files[file.file].is_compressed ? ZSTD_compressBound(raw) : 0);
  }
  TRY(check_disk(bytes, wanted.out, files));
  return check_free_files(2 * damage.size(), wanted.out, files);  // each may also need a folder
}

Result<void> mend_files(const WantedFiles& wanted, const std::vector<FileDamage>& damage, const Plan& plan,
                        const Checkpoint& source, format::Repository* repository, unsigned jobs,
                        format::FileSystem& files, RepairReport& report, format::Progress& progress,
                        const std::stop_token& stop) {
  DurableFolders folders(files, wanted.out);
  Mender mender(wanted, damage, files, folders);
  std::vector<uint64_t> shards;
  for (uint64_t shard = 0; shard < plan.shards.size(); ++shard) {
    if (plan.shards[shard].empty()) continue;
    shards.push_back(shard);
    report.fetched_tensors += plan.shards[shard].size();
  }
  report.fetched_bytes += plan.source_bytes;
  std::vector<uint32_t> unread;
  for (const FileDamage& file : damage) {
    if (file.slots.empty()) unread.push_back(file.file);
  }
  progress.started("repairing", plan.source_bytes, shards.size() + unread.size());
  const auto one = [&](uint64_t i, const std::stop_token& stop_one) -> Result<void> {
    if (i < unread.size()) {
      TRY(mender.finish_unread(unread[i]));
      progress.item_done();
      return {};
    }
    const uint64_t shard = shards[i - unread.size()];
    TRY_ASSIGN(const ShardDone done, scatter_shard(plan, source, shard, *repository, mender, progress, stop_one));
    return mender.shard_done(plan.shards[shard], done, repository->locate(source.files()[shard].path));
  };
  TRY(run_jobs(unread.size() + shards.size(), jobs, one, stop));
  progress.finished();
  return {};
}

Result<RepairReport> repair(const Checkpoint& packed, const RepairOptions& options, const OpenSource& open_source,
                            format::FileSystem& files, format::Progress& progress, const std::stop_token& stop) {
  const Manifest& manifest = *packed.manifest();
  auto recipe = parse_recipe(format::canonical_json(manifest.recipe));
  if (!recipe) return recipe.error().in((options.folder / format::kManifestPath).string());
  // Also held while looking for damage: the findings must still be true when it is mended.
  TRY_ASSIGN(const auto lock, lock_work_folder(options.folder, format::LockKind::exclusive, files));
  const WantedFiles wanted = wanted_by_manifest(packed, options.folder, recipe->zstd_level);
  FoundDamage found;
  TRY_ASSIGN(found.files, find_damage(wanted, options.scrutiny, options.jobs, files, progress, stop));
  TRY_ASSIGN(found.companions,
             damaged_companions(manifest, options.folder, options.scrutiny, options.jobs, files, stop));
  RepairReport report{.checked_files = manifest.files.size() + manifest.companions.size(),
                      .damaged_files = found.files.size() + found.companions.size()};
  if (!found.none()) {
    TRY(check_room(wanted, found.files, files));
    TRY(mend(packed, *recipe, wanted, found, options, open_source, files, report, progress, stop));
  }
  TRY(files.sync_folder(options.folder));
  TRY(remove_work_folder(options.folder, files));
  return report;
}

}  // namespace dspack::reshard
