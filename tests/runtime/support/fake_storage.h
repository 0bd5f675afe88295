// Weights of a few experts in memory, behind a storage that a test holds, lets go in an order of its own, spoils, and
// watches. Nothing sleeps: a read waits until the test lets it through.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/experts/slot_plan.h"
#include "runtime/storage/local_storage.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::test {

/// Layers 0 and 1 with `experts` FP8 experts each, whose gate and up have scales in another file.
class ExpertFolder {
 public:
  static constexpr uint32_t kHidden = 64;
  static constexpr uint32_t kInner = 64;

  explicit ExpertFolder(uint32_t experts) {
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

  TempFolder folder;
  std::map<std::string, std::string> bytes;  // by tensor
};

class FakeStorage final : public runtime::WeightStorage {
 public:
  explicit FakeStorage(const ExpertFolder& experts)
      : repository_(open(experts)),
        checkpoint_(catalogue(*repository_)),
        inner_(std::make_unique<runtime::LocalStorage>(*repository_, checkpoint_,
                                                       runtime::LocalStorageOptions{.max_open = 4})) {}

  // What the test does -------------------------------------------------------------------------------------------

  /// From now on reads of experts wait for `let_through`.
  void hold() {
    const std::lock_guard lock(mutex_);
    is_held_ = true;
  }
  void let_through(ExpertKey key) {
    const std::lock_guard lock(mutex_);
    through_.insert(key);
    changed_.notify_all();
  }
  void let_all_through() {
    const std::lock_guard lock(mutex_);
    is_held_ = false;
    changed_.notify_all();
  }
  /// The next `times` loads of the expert fail, or come with a flipped bit.
  void fail(ExpertKey key, int times) {
    const std::lock_guard lock(mutex_);
    failing_[key] = times;
  }
  void spoil(ExpertKey key, int times) {
    const std::lock_guard lock(mutex_);
    spoiled_[key] = times;
  }
  void set_tier(runtime::StorageTier tier) { tier_ = tier; }
  /// Before a store is made.
  void set_depth(unsigned depth) { depth_ = depth; }
  void set_verify(bool verify) { verify_ = verify; }
  void fail_keeping() { fails_keeping_ = true; }
  /// Gives every tensor the digest of its bytes, as a manifest would.
  void add_digests(const ExpertFolder& experts) {
    for (const format::TensorEntry& tensor : checkpoint_.tensors()) {
      // A catalogue is immutable for all but the test that has just made it.
      const_cast<format::TensorEntry&>(tensor).digest = format::sha256(experts.bytes.at(tensor.name));
    }
  }

  // What it sees -------------------------------------------------------------------------------------------------

  /// Waits until reads of so many experts are held back.
  void wait_for_held(size_t experts) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_.size() >= experts; });
  }
  [[nodiscard]] std::set<ExpertKey> held() const {
    const std::lock_guard lock(mutex_);
    return held_;
  }
  /// Loads of each expert, counted by the reads of its first byte.
  [[nodiscard]] std::map<ExpertKey, int> loads() const {
    const std::lock_guard lock(mutex_);
    return loads_;
  }
  [[nodiscard]] std::map<ExpertKey, std::string> kept() const {
    const std::lock_guard lock(mutex_);
    return kept_;
  }

  // WeightStorage ------------------------------------------------------------------------------------------------

  [[nodiscard]] const format::Checkpoint& checkpoint() const override { return checkpoint_; }

  Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into, const std::stop_token& stop) override {
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

  [[nodiscard]] runtime::StorageTier tier_of(ExpertKey) const override { return tier_; }
  [[nodiscard]] bool must_verify(ExpertKey) const override { return verify_; }
  Result<void> keep(ExpertKey key, std::span<const runtime::TensorBytes> tensors, const std::stop_token&) override {
    const std::lock_guard lock(mutex_);
    if (fails_keeping_) return Error{ErrorKind::io, "the cache cannot be written"};
    for (const runtime::TensorBytes& tensor : tensors)
      kept_[key].append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    return {};
  }
  // Two blocks an expert: the reads of four experts can be held back at once.
  [[nodiscard]] uint64_t block_bytes() const override { return 1 << 20; }
  [[nodiscard]] unsigned depth() const override { return depth_; }

 private:
  struct Place {
    ExpertKey key;
    bool is_first = false;  // the first byte of the expert's first tensor
  };

  static std::unique_ptr<format::Repository> open(const ExpertFolder& experts) {
    auto repository = format::open_repository(experts.folder.path().string(), {}, format::posix_file_system());
    DSPACK_CHECK(repository.has_value(), "the test's folder cannot be opened");
    return std::move(*repository);
  }
  static format::Checkpoint catalogue(format::Repository& repository) {
    auto checkpoint = format::Checkpoint::open(repository, 1, {});
    DSPACK_CHECK(checkpoint.has_value(), "the test's folder is no checkpoint");
    return std::move(*checkpoint);
  }

  [[nodiscard]] std::optional<Place> place_of(uint32_t file, uint64_t offset) const {
    for (const auto& [key, tensors] : checkpoint_.experts()) {
      for (const format::Extent& extent : checkpoint_.expert_extents(key)) {
        const bool inside = extent.file == file && extent.range.begin <= offset && offset < extent.range.end;
        const bool is_weights = checkpoint_.files()[file].path == "weights.safetensors";
        if (inside) return Place{.key = key, .is_first = is_weights && extent.range.begin == offset};
      }
    }
    return std::nullopt;
  }

  Result<void> pass(const Place& place, const std::stop_token& stop) {
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

  std::unique_ptr<format::Repository> repository_;
  format::Checkpoint checkpoint_;
  std::unique_ptr<runtime::LocalStorage> inner_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  bool is_held_ = false;
  std::set<ExpertKey> through_, held_;
  std::map<ExpertKey, int> failing_, spoiled_, loads_;
  std::map<ExpertKey, std::string> kept_;
  runtime::StorageTier tier_ = runtime::StorageTier::disk;
  unsigned depth_ = 8;
  bool verify_ = false;
  bool fails_keeping_ = false;
};

}  // namespace dspack::test
