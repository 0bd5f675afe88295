#include "runtime/storage/open_storage.h"

#include <fmt/format.h>

#include "format/part/same_source.h"
#include "runtime/storage/completed_place.h"
#include "runtime/storage/joined_storage.h"

namespace dspack::runtime {
namespace {

// Headers of an ordinary checkpoint that are read at the same time.
constexpr unsigned kHeaderJobs = 8;

/// `wanted`: as of RemoteStorage::open.
Result<OpenedStorage> open_one(format::Repository& repository, format::Checkpoint& catalogue, const LocalAccess& local,
                               std::optional<std::span<const uint32_t>> wanted, const std::stop_token& stop) {
  OpenedStorage opened;
  if (auto* place = dynamic_cast<RemotePlace*>(&repository)) {
    TRY_ASSIGN(auto storage, place->open_storage(catalogue, wanted));
    opened.remotes.push_back({.place = place, .storage = storage.get()});
    opened.storage = std::move(storage);
    return opened;
  }
  TRY_ASSIGN(opened.io, choose_io(repository, catalogue, local.io, {.device = local.device}, stop));
  opened.storage = std::make_unique<LocalStorage>(repository, catalogue, storage_options(opened.io, local.verify));
  return opened;
}

Result<format::Digest> digest_at(WeightStorage& storage, const format::TensorEntry& tensor,
                                 const std::stop_token& stop) {
  if (tensor.digest) return *tensor.digest;
  std::vector<std::byte> bytes(tensor.range.size());
  TRY(storage.read(tensor.file, tensor.range.begin, bytes, stop));
  format::Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

/// Headers and sizes are the same for every model of one shape; bytes are not.
Result<void> compare_bytes(CompletedPlace& place, WeightStorage& rest, const std::stop_token& stop) {
  for (const format::Witness& witness : format::witnesses(place.part_catalogue(), place.rest_catalogue())) {
    const format::TensorEntry& tensor = place.rest_catalogue().tensors()[witness.tensor];
    TRY_ASSIGN(const format::Digest there, digest_at(rest, tensor, stop));
    if (there == witness.digest) continue;
    return place.another_checkpoint(
        {ErrorKind::invalid, fmt::format("its {} has other bytes than that of the part (SHA-256)", tensor.name)});
  }
  return {};
}

void learn_digests(const CompletedPlace& place, const WeightStorage& part, const WeightStorage& rest,
                   format::Checkpoint& catalogue) {
  const size_t part_files = part.checkpoint().files().size();
  for (uint32_t i = 0; i < catalogue.tensors().size(); ++i) {
    const bool is_of_part = catalogue.tensors()[i].file < part_files;
    const auto& known = (is_of_part ? part : rest).checkpoint().tensors()[place.own()[i]].digest;
    if (known) catalogue.learn_digest(i, *known);
  }
}

Result<OpenedStorage> open_completed(CompletedPlace& place, format::Checkpoint& catalogue, const LocalAccess& local,
                                     const std::stop_token& stop) {
  TRY_ASSIGN(OpenedStorage opened, open_one(place.part(), place.part_catalogue(), local, {}, stop));
  TRY_ASSIGN(OpenedStorage rest, open_one(place.rest(), place.rest_catalogue(), local, place.absent(), stop));
  if (!place.is_origin()) TRY(compare_bytes(place, *rest.storage, stop));
  learn_digests(place, *opened.storage, *rest.storage, catalogue);
  opened.remotes.insert(opened.remotes.end(), rest.remotes.begin(), rest.remotes.end());
  opened.storage =
      std::make_unique<JoinedStorage>(catalogue, place.own(), std::move(opened.storage), std::move(rest.storage));
  return opened;
}

}  // namespace

Result<format::Checkpoint> open_catalogue(format::Repository& repository, uint32_t layers,
                                          const std::stop_token& stop) {
  if (auto* place = dynamic_cast<CompletedPlace*>(&repository)) return place->open_catalogue(layers, stop);
  return format::Checkpoint::open(repository, kHeaderJobs, stop);
}

Result<OpenedStorage> open_storage(format::Repository& repository, format::Checkpoint& catalogue,
                                   const LocalAccess& local, const std::stop_token& stop) {
  if (auto* place = dynamic_cast<CompletedPlace*>(&repository)) return open_completed(*place, catalogue, local, stop);
  return open_one(repository, catalogue, local, {}, stop);
}

}  // namespace dspack::runtime
