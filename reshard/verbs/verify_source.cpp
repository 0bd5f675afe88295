#include "reshard/verbs/verify_source.h"

#include <algorithm>
#include <mutex>
#include <set>

#include <fmt/format.h>

#include "format/base/parallel.h"
#include "reshard/run/changed_config.h"
#include "reshard/run/companions.h"
#include "reshard/run/scatter.h"
#include "reshard/run/source_facts.h"

namespace dspack::reshard {
namespace {

using format::Checkpoint;
using format::TensorEntry;

/// Finds tensors that the recipe makes from the source but the packed repository lacks or describes differently, and
/// tensors that only the packed repository has.
void compare_catalogues(const Checkpoint& packed, const Checkpoint& wanted, Findings& findings) {
  for (const TensorEntry& tensor : wanted.tensors()) {
    const TensorEntry* copy = packed.find(tensor.name);
    if (copy == nullptr) {
      findings.add(fmt::format("tensor \"{}\" of the source is missing", tensor.name));
    } else if (copy->dtype != tensor.dtype || copy->shape != tensor.shape) {
      findings.add(fmt::format("{}: tensor \"{}\" has another dtype or shape than in the source",
                               packed.files()[copy->file].path, tensor.name));
    }
  }
  for (const TensorEntry& tensor : packed.tensors()) {
    if (!tensor.is_alias && wanted.find(tensor.name) == nullptr) {
      findings.add(
          fmt::format("{}: tensor \"{}\" is not in the source", packed.files()[tensor.file].path, tensor.name));
    }
  }
}

/// The same for tensors that are stored once under several names.
void compare_aliases(const Checkpoint& packed, const Product& product, const Checkpoint& source, Findings& findings) {
  std::set<std::string_view> wanted;
  for (const Alias& alias : product.aliases) {
    const std::string& name = source.tensors()[alias.tensor].name;
    wanted.insert(name);
    if (packed.find(name) == nullptr) findings.add(fmt::format("tensor \"{}\" of the source is missing", name));
  }
  for (const TensorEntry& tensor : packed.tensors()) {
    if (tensor.is_alias && !wanted.contains(tensor.name))
      findings.add(fmt::format("alias \"{}\" is not in the source, or not of equal bytes", tensor.name));
  }
}

/// A file that compares what is "written" to it with a packed tensor. Differences and unreadable bytes are findings.
class ComparedTensor final : public format::WriteFile {
 public:
  ComparedTensor(format::Repository& repository, const Checkpoint& packed, const TensorEntry& tensor,
                 Findings& findings, const std::stop_token& stop)
      : repository_(repository), packed_(packed), tensor_(tensor), findings_(findings), stop_(stop) {}

  Result<void> write(uint64_t offset, std::span<const std::byte> wanted) override {
    if (reported_) return {};
    const std::string& path = packed_.files()[tensor_.file].path;
    if (!file_) {
      auto file = repository_.open(path, stop_);
      if (!file) return report(file.error());
      file_ = std::move(file).value();
    }
    buffer_.resize(wanted.size());
    const auto read = file_->read(offset, buffer_, stop_);
    if (!read) return report(read.error());
    const auto differ = std::mismatch(wanted.begin(), wanted.end(), buffer_.begin());
    if (differ.first == wanted.end()) return {};
    const uint64_t byte = offset - tensor_.range.begin + static_cast<uint64_t>(differ.first - wanted.begin());
    findings_.add(fmt::format("{}: tensor \"{}\" differs from the source at its byte {}", path, tensor_.name, byte));
    reported_ = true;
    return {};
  }
  Result<void> resize(uint64_t /*bytes*/) override { return {}; }
  Result<void> sync() override { return {}; }

 private:
  Result<void> report(const Error& error) {
    if (!is_finding(error)) return error;
    findings_.add(fmt::format("{}: {}", packed_.files()[tensor_.file].path, error.message));
    reported_ = true;
    return {};
  }

  format::Repository& repository_;
  const Checkpoint& packed_;
  const TensorEntry& tensor_;
  Findings& findings_;
  const std::stop_token& stop_;
  std::unique_ptr<format::ByteSource> file_;
  std::vector<std::byte> buffer_;
  bool reported_ = false;  // one finding per tensor is enough
};

/// The packed tensors as targets: a copy's `slot` is the tensor's index in the packed catalogue.
class ComparedTensors final : public TensorTargets {
 public:
  ComparedTensors(format::Repository& repository, const Checkpoint& packed, Findings& findings,
                  const std::stop_token& stop)
      : repository_(repository), packed_(packed), findings_(findings), stop_(stop) {}

  Result<TensorTarget> open(const Copy& copy, uint64_t /*done*/) override {
    TensorTarget target;
    target.file =
        std::make_unique<ComparedTensor>(repository_, packed_, packed_.tensors()[copy.slot], findings_, stop_);
    return target;
  }
  void close(const Copy& /*copy*/, TensorTarget& /*target*/, const TensorDigests& /*digests*/) override {}

 private:
  format::Repository& repository_;
  const Checkpoint& packed_;
  Findings& findings_;
  const std::stop_token& stop_;
};

/// The copies of all tensors from the source to their packed places. Tensors that are packed with another size are left
/// out: compare_catalogues reports them.
Plan comparison_plan(const Product& product, const Checkpoint& source, const Checkpoint& packed) {
  Plan plan;
  plan.shards.resize(source.files().size());
  for (size_t i = 0; i < product.makings.size(); ++i) {
    const Making& making = product.makings[i];
    const TensorEntry& wanted = product.result.tensors()[i];
    const TensorEntry* stored = packed.find(wanted.name);
    if (stored == nullptr || stored->range.size() != wanted.range.size()) continue;
    const TensorEntry& from = source.tensors()[making.source];
    plan.shards[from.file].push_back({.tensor = making.source,
                                      .source = from.range,
                                      .file = stored->file,
                                      .slot = static_cast<uint32_t>(stored - packed.tensors().data()),
                                      .offset = stored->range.begin,
                                      .bytes = wanted.range.size(),
                                      .conversion = making.conversion,
                                      .needs = making.needs});
  }
  for (const Alias& alias : product.aliases) {
    const TensorEntry& from = source.tensors()[alias.tensor];
    const TensorEntry* stored = packed.find(from.name);
    if (stored == nullptr || stored->range.size() != from.range.size()) continue;
    plan.shards[from.file].push_back({.tensor = alias.tensor,
                                      .source = from.range,
                                      .file = stored->file,
                                      .slot = static_cast<uint32_t>(stored - packed.tensors().data()),
                                      .offset = stored->range.begin,
                                      .bytes = from.range.size()});
  }
  for (std::vector<Copy>& copies : plan.shards) {
    sort_copies(copies);
    plan.reads.push_back({.whole = false, .ranges = wanted_ranges(copies)});
  }
  return plan;
}

/// Compares files without weights. The packed ones were compared with the manifest before.
Result<void> compare_companions(const format::Manifest& packed, const Plan& plan, format::Repository& repository,
                                const Checkpoint& source, unsigned jobs, VerifyReport& report, Findings& findings,
                                const std::stop_token& stop) {
  CompanionDigests stored = recorded_companions(packed);
  if (has_changed_config(packed)) {
    for (const SetAside& name : kSetAside) {
      const auto kept = stored.find(std::string(name.packed));
      if (kept == stored.end()) continue;
      stored[std::string(name.source)] = kept->second;
      stored.erase(kept);
    }
  }
  TRY_ASSIGN(std::set<std::string> names, companion_names({repository, source}, stop));
  for (const auto& [name, unused] : stored)
    names.insert(name);
  uint64_t bytes_read = 0;
  TRY_ASSIGN(const CompanionDigests wanted, companion_digests({repository, source}, names, jobs, bytes_read, stop));
  for (const auto& [name, digest] : wanted) {
    const auto found = stored.find(name);
    if (found == stored.end())
      findings.add(fmt::format("{}: of the source, is missing", name));
    else if (found->second != digest)
      findings.add(fmt::format("{}: differs from the source's", name));
  }
  for (const auto& [name, digest] : stored) {
    if (!wanted.contains(name)) findings.add(fmt::format("{}: is not in the source", name));
  }
  report.companions = wanted.size();
  if (!has_changed_config(packed)) return {};
  TRY_ASSIGN(const auto config, changed_config(plan, repository, stop));
  const auto own = std::ranges::find(packed.companions, kConfigPath, &format::CompanionFile::path);
  if (!config || own == packed.companions.end() || own->sha256 != format::sha256(*config))
    findings.add(fmt::format("{}: is not what the recipe makes of the source's", kConfigPath));
  return {};
}

}  // namespace

Result<VerifyReport> verify_against_source(format::Repository& packed, const Checkpoint& catalogue,
                                           format::Repository& source_repository, const Checkpoint& source,
                                           unsigned jobs, format::Progress& progress, const std::stop_token& stop) {
  auto recipe = parse_recipe(format::canonical_json(catalogue.manifest()->recipe));
  if (!recipe) return recipe.error().in(packed.locate(format::kManifestPath));
  TRY_ASSIGN(const SourceFacts facts, find_facts(*recipe, source, source_repository, jobs, stop));
  TRY_ASSIGN(Product product, make_product(*recipe, source, facts));
  VerifyReport report{.files = source.files().size(),
                      .tensors = product.result.tensors().size(),
                      .bytes = product.result.payload_bytes(),
                      .companions = 0,
                      .findings = {}};
  Findings findings;
  compare_catalogues(catalogue, product.result, findings);
  compare_aliases(catalogue, product, source, findings);
  Plan plan = comparison_plan(product, source, catalogue);
  plan.stored = facts.stored;
  uint64_t to_read = 0;
  for (const ShardRead& read : plan.reads)
    to_read += read.bytes();
  progress.started("comparing", to_read, report.files);
  const auto one = [&](uint64_t shard, const std::stop_token& stop_one) -> Result<void> {
    ComparedTensors targets(packed, catalogue, findings, stop_one);
    TRY(scatter_shard(plan, source, shard, source_repository, targets, progress, stop_one));
    return {};
  };
  TRY(run_jobs(source.files().size(), jobs, one, stop));
  progress.finished();
  plan.recipe = std::move(*recipe);
  plan.result = std::move(product.result);
  TRY(compare_companions(*catalogue.manifest(), plan, source_repository, source, jobs, report, findings, stop));
  report.findings = findings.sorted();
  return report;
}

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

/// Compares a rebuilt digest and size with a declaration; adds one line per difference.
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

/// Compares everything that needs no weights: companions, and declared weights that were not packed.
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
  return Error{
      ErrorKind::invalid,
      fmt::format("packed from a folder, here or over HTTP, whose address is not recorded: name the source with "
                  "--upstream SOURCE, {}",
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
    progress.item_done();
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
