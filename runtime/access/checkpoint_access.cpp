#include "runtime/access/checkpoint_access.h"

#include <fmt/format.h>

#include <set>

#include "format/file_system.h"
#include "format/kept_headers.h"
#include "format/part/completion.h"
#include "runtime/access/folder_tier.h"
#include "runtime/access/overlay_tier.h"

namespace dspack::runtime {
namespace {

/// The tier of a catalogue without weights: for plans of models of which only config.json was read. Borrows the
/// catalogue. Errors: not_found for every read.
class UnreadTier final : public Tier {
 public:
  /// `medium`: where the weights are assumed to be.
  UnreadTier(const format::Checkpoint& checkpoint, Medium medium) : checkpoint_(checkpoint), medium_(medium) {}

  [[nodiscard]] const format::Checkpoint& checkpoint() const override { return checkpoint_; }
  [[nodiscard]] Result<void> read(uint32_t /*file*/, uint64_t /*offset*/, std::span<std::byte> /*into*/,
                                  const std::stop_token& /*stop*/) override {
    return Error{ErrorKind::not_found, "only config.json was read of this model; its weights are not here"};
  }
  [[nodiscard]] Medium medium_of(ExpertKey /*expert*/) const override { return medium_; }
  [[nodiscard]] bool must_verify(ExpertKey /*expert*/) const override { return false; }
  [[nodiscard]] Result<void> keep(ExpertKey /*expert*/, std::span<const TensorBytes> /*tensors*/,
                                  const std::stop_token& /*stop*/) override {
    return {};
  }
  [[nodiscard]] bool is_distant() const override { return medium_ == Medium::network; }
  // A folder's values, so that a plan has the threads and buffers of a run.
  [[nodiscard]] uint64_t block_bytes(uint32_t /*file*/) const override { return kLocalBlockBytes; }
  [[nodiscard]] unsigned depth() const override { return kLocalDepth; }

 private:
  const format::Checkpoint& checkpoint_;
  Medium medium_;
};

// Headers of an ordinary checkpoint that are read in parallel.
constexpr unsigned kHeaderJobs = 8;

Result<std::string> address_of_rest(const std::string& rest, const format::Repository& part,
                                    const format::Origin& origin) {
  if (rest != kOriginWord) return rest;
  if (!origin.repository.empty()) return fmt::format("hf://{}@{}", origin.repository, origin.revision);
  return Error{
      ErrorKind::not_found,
      fmt::format("{}: does not record the folder or address that it was made from; give it with --absent-from PLACE",
                  part.description())};
}

/// Whether the place is the commit that the part's manifest names; if so, its bytes need no comparison.
bool is_origin(const format::Repository& place, const format::Origin& origin) {
  const auto hub = place.hub_origin();
  return hub && !origin.revision.empty() && hub->commit == origin.revision;
}

Result<format::Digest> digest_at(Tier& tier, const format::TensorEntry& tensor, const std::stop_token& stop) {
  if (tensor.digest) return *tensor.digest;
  std::vector<std::byte> bytes(tensor.range.size());
  TRY(tier.read(tensor.file, tensor.range.begin, bytes, stop));
  format::Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

/// Checks that the files that a packed folder's manifest names exist. Opening does not touch them, unlike an ordinary
/// checkpoint's files, whose headers are read. Errors: not_found, with the remedy.
Result<void> require_files(const format::Repository& packed, const format::Checkpoint& catalogue) {
  if (!catalogue.manifest() || !packed.is_local()) return {};
  uint64_t lost = 0;
  std::string first;
  for (const format::CheckpointFile& file : catalogue.files()) {
    TRY_ASSIGN(const auto info, format::posix_file_system().stat(packed.locate(file.path)));
    if (info && info->is_regular) continue;
    if (lost++ == 0) first = file.path;
  }
  if (lost == 0) return {};
  return Error{
      ErrorKind::not_found,
      fmt::format("{}: {} of the {} files with weights that {} names {} missing, the first is {}; \"reshard repair\" "
                  "fetches what is lost",
                  packed.description(), lost, catalogue.files().size(), format::kManifestPath, lost == 1 ? "is" : "are",
                  first)};
}

}  // namespace

CheckpointAccess::CheckpointAccess(CheckpointPlace place) {
  places_.reserve(2);  // tiers borrow its catalogues, so it must not reallocate
  places_.push_back({.place = std::move(place)});
}

Result<void> CheckpointAccess::complete_from(const std::string& rest, const PlaceOpener& open,
                                             const std::stop_token& stop) {
  Source& part = places_.front();
  TRY_ASSIGN(part.catalogue, read_catalogue(part.place, stop));
  if (!format::is_part(part.catalogue)) {
    return Error{ErrorKind::invalid,
                 fmt::format("{}: is no part of a model (a packed repository whose recipe left something out), so "
                             "nothing is absent; leave out --absent-from",
                             part.place.files->description())};
  }
  TRY_ASSIGN(const std::string address, address_of_rest(rest, *part.place.files, part.catalogue.manifest()->origin));
  TRY_ASSIGN(CheckpointPlace place, open(address));
  places_.push_back({.place = std::move(place)});
  return {};
}

std::shared_ptr<const format::TransferCounters> CheckpointAccess::transfers() const {
  const CheckpointPlace& rest = places_.back().place;
  return rest.transfers ? rest.transfers : places_.front().place.transfers;
}

Result<format::Checkpoint> CheckpointAccess::read_catalogue(const CheckpointPlace& place, const std::stop_token& stop) {
  auto catalogue = format::Checkpoint::open(*place.files, kHeaderJobs, stop, place.progress.get());
  if (place.progress) place.progress->finished();
  if (catalogue) TRY(require_files(*place.files, *catalogue));
  return catalogue;
}

std::string CheckpointAccess::rest_address() const {
  const format::Repository& rest = *places_.back().place.files;
  return rest.is_local() ? rest.description() : origin_of(rest);
}

Error CheckpointAccess::another_checkpoint(const Error& difference) const {
  return {difference.kind,
          fmt::format("{} is not what {} was made from: {}; name the place that is, with --absent-from", rest_address(),
                      places_.front().place.files->description(), difference.message)};
}

std::optional<AbsentWeights> CheckpointAccess::absent() const {
  if (places_.size() == 1) return std::nullopt;
  AbsentWeights weights;
  std::set<ExpertKey> experts;
  for (const uint32_t number : absent_) {
    const format::TensorEntry& tensor = places_.back().catalogue.tensors()[number];
    if (tensor.place.expert) {
      experts.insert({*tensor.place.layer, *tensor.place.expert});
      weights.expert_bytes += tensor.range.size();
    } else {
      ++weights.other_tensors;
      weights.other_bytes += tensor.range.size();
    }
  }
  weights.experts = experts.size();
  return weights;
}

Result<void> CheckpointAccess::open_catalogue(uint32_t layers, const std::stop_token& stop) {
  TRY_ASSIGN(catalogue_,
             places_.size() == 1 ? read_catalogue(places_.front().place, stop) : join_catalogues(layers, stop));
  catalogue_.place_modules(layers);
  return {};
}

void CheckpointAccess::suppose(format::Checkpoint catalogue, Medium medium) {
  catalogue_ = std::move(catalogue);
  opened_ = {.tier = std::make_unique<UnreadTier>(catalogue_, medium), .io = {}};
}

Result<format::Checkpoint> CheckpointAccess::join_catalogues(uint32_t layers, const std::stop_token& stop) {
  const Source& part = places_.front();
  Source& rest = places_.back();
  const format::Manifest& manifest = *part.catalogue.manifest();
  TRY_ASSIGN(rest.catalogue, read_catalogue(rest.place, stop));
  format::Json headers;
  if (!rest.catalogue.manifest()) {
    TRY_ASSIGN(headers, format::read_kept_headers(*part.place.files, manifest, stop));
  }
  const bool is_hub = rest.place.files->kind() == format::RepositoryKind::hub;
  if (const auto same = format::compare_sources(part.catalogue, headers, rest.catalogue, is_hub); !same)
    return another_checkpoint(same.error());
  const auto end = manifest.recipe.contains("drop_mtp") ? std::optional(layers) : std::nullopt;
  auto completion = format::complete(part.catalogue, rest.catalogue, end);
  if (!completion) return another_checkpoint(completion.error());
  if (completion->absent.empty()) {
    return Error{ErrorKind::not_found,
                 fmt::format("{} has none of the tensors that {} lacks; give another place with --absent-from",
                             rest_address(), part.place.files->description())};
  }
  own_ = std::move(completion->own);
  absent_ = std::move(completion->absent);
  return std::move(completion->catalogue);
}

Result<void> CheckpointAccess::open_weights(const LocalAccess& local, const std::stop_token& stop) {
  if (places_.size() > 1) return open_overlay(local, stop);
  TRY_ASSIGN(opened_, places_.front().place.open_tier(catalogue_, {}, local, stop));
  return {};
}

Result<void> CheckpointAccess::open_overlay(const LocalAccess& local, const std::stop_token& stop) {
  Source& part = places_.front();
  Source& rest = places_.back();
  TRY_ASSIGN(OpenedTier of_part, part.place.open_tier(part.catalogue, {}, local, stop));
  TRY_ASSIGN(OpenedTier of_rest, rest.place.open_tier(rest.catalogue, absent_, local, stop));
  if (!is_origin(*rest.place.files, part.catalogue.manifest()->origin)) TRY(compare_bytes(*of_rest.tier, stop));
  const size_t part_files = part.catalogue.files().size();
  for (uint32_t i = 0; i < catalogue_.tensors().size(); ++i) {
    const Source& source = catalogue_.tensors()[i].file < part_files ? part : rest;
    const auto& known = source.catalogue.tensors()[own_[i]].digest;
    if (known) catalogue_.learn_digest(i, *known);
  }
  std::vector<std::unique_ptr<Tier>> tiers;
  tiers.push_back(std::move(of_part.tier));
  tiers.push_back(std::move(of_rest.tier));
  opened_ = {.tier = std::make_unique<OverlayTier>(catalogue_, own_, std::move(tiers)), .io = std::move(of_part.io)};
  return {};
}

Result<void> CheckpointAccess::compare_bytes(Tier& rest, const std::stop_token& stop) const {
  const format::Checkpoint& catalogue = places_.back().catalogue;
  for (const format::Witness& witness : format::witnesses(places_.front().catalogue, catalogue)) {
    const format::TensorEntry& tensor = catalogue.tensors()[witness.tensor];
    TRY_ASSIGN(const format::Digest there, digest_at(rest, tensor, stop));
    if (there == witness.digest) continue;
    return another_checkpoint(
        {ErrorKind::invalid, fmt::format("its {} has other bytes than that of the part (SHA-256)", tensor.name)});
  }
  return {};
}

Result<void> CheckpointAccess::read(const format::TensorEntry& tensor, uint64_t offset, std::span<std::byte> into,
                                    WeightPurpose purpose, const std::stop_token& stop) {
  DSPACK_CHECK(offset <= tensor.range.size() && into.size() <= tensor.range.size() - offset, "read outside a tensor");
  if (auto done = weights().read(tensor.file, tensor.range.begin + offset, into, stop); !done) {
    return done.error().in(fmt::format("reading {}", tensor.name));
  }
  count(purpose, into.size());
  return {};
}

}  // namespace dspack::runtime
