#include "tests/runtime/support/fake_tier.h"

#include "format/base/check.h"
#include "format/json.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::test {
namespace {

std::unique_ptr<format::Repository> open(const ExpertFolder& experts) {
  auto repository = format::open_repository(experts.folder.path().string(), {}, format::posix_file_system());
  DSPACK_CHECK(repository.has_value(), "the test's folder cannot be opened");
  return std::move(*repository);
}

format::Checkpoint catalogue(format::Repository& repository) {
  auto checkpoint = format::Checkpoint::open(repository, 1, {});
  DSPACK_CHECK(checkpoint.has_value(), "the test's folder is no checkpoint");
  return std::move(*checkpoint);
}

}  // namespace

ExpertFolder::ExpertFolder(uint32_t experts) {
  std::vector<RawTensor> weights;
  std::vector<RawTensor> scales;
  unsigned seed = 1;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    for (uint32_t expert = 0; expert < experts; ++expert) {
      for (const std::string part : {"gate_proj", "up_proj", "down_proj"}) {
        const std::string name =
            "model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(expert) + "." + part;
        weights.push_back({name + ".weight", "F8_E4M3", {kInner, kHidden}, pattern(kInner * kHidden, ++seed)});
        scales.push_back({name + ".weight_scale_inv", "F32", {1, 1}, pattern(sizeof(float), ++seed)});
      }
    }
  }
  format::Json map = format::Json::object();
  const auto write = [&](const std::string& file, const std::vector<RawTensor>& tensors, size_t padding) {
    folder.write(file, safetensors_file(tensors, padding));
    for (const RawTensor& tensor : tensors) {
      map[tensor.name] = file;
      bytes[tensor.name] = tensor.bytes;
    }
  };
  write("weights.safetensors", weights, 3);  // matrices at odd places
  write("scales.safetensors", scales, 1);
  folder.write("model.safetensors.index.json", format::Json({{"weight_map", map}}).dump());
}

FakeTier::FakeTier(const ExpertFolder& experts)
    : repository_(open(experts)),
      checkpoint_(catalogue(*repository_)),
      inner_(std::make_unique<runtime::FolderTier>(*repository_, checkpoint_,
                                                   runtime::FolderTierOptions{.max_open = 4})) {}

void FakeTier::add_digests(const ExpertFolder& experts) {
  for (const format::TensorEntry& tensor : checkpoint_.tensors()) {
    // A catalogue is immutable for all but the test that has just made it.
    const_cast<format::TensorEntry&>(tensor).digest = format::sha256(experts.bytes.at(tensor.name));
  }
}

void FakeTier::wait_for_held(size_t experts) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return held_.size() >= experts; });
}

Result<void> FakeTier::read(uint32_t file, uint64_t offset, std::span<std::byte> into, const std::stop_token& stop) {
  const std::optional<Place> place = place_of(file, offset);
  if (place) TRY(pass(*place, stop));
  TRY(inner_->read(file, offset, into, stop));
  if (!place || !place->is_first) return {};
  const std::lock_guard lock(mutex_);
  if (spoiled_[place->key] > 0) {
    --spoiled_[place->key];
    into[0] ^= std::byte{1};
  }
  return {};
}

Result<void> FakeTier::keep(ExpertKey key, std::span<const runtime::TensorBytes> tensors, const std::stop_token&) {
  const std::lock_guard lock(mutex_);
  if (fails_keeping_) return Error{ErrorKind::io, "the cache cannot be written"};
  for (const runtime::TensorBytes& tensor : tensors)
    kept_[key].append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  return {};
}

std::optional<FakeTier::Place> FakeTier::place_of(uint32_t file, uint64_t offset) const {
  for (const auto& [key, tensors] : checkpoint_.experts()) {
    for (const format::Extent& extent : checkpoint_.expert_extents(key)) {
      const bool inside = extent.file == file && extent.range.begin <= offset && offset < extent.range.end;
      const bool is_weights = checkpoint_.files()[file].path == "weights.safetensors";
      if (inside) return Place{.key = key, .is_first = is_weights && extent.range.begin == offset};
    }
  }
  return std::nullopt;
}

Result<void> FakeTier::pass(const Place& place, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (place.is_first) ++loads_[place.key];
  if (is_held_) {
    held_.insert(place.key);
    changed_.notify_all();
    const auto may_pass = [&] { return !is_held_ || through_.contains(place.key); };
    if (!changed_.wait(lock, stop, may_pass)) return Error{ErrorKind::cancelled, "stopped"};
    held_.erase(place.key);
  }
  if (place.is_first && failing_[place.key] > 0) {
    --failing_[place.key];
    return Error{ErrorKind::io, "weights.safetensors: the disk does not answer"};
  }
  return {};
}

}  // namespace dspack::test
