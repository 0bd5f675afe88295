// Weights of a few experts in memory, behind a storage that a test holds, lets go in an order of its own, spoils, and
// watches. Nothing sleeps: a read waits until the test lets it through.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/access/folder_tier.h"
#include "tests/support/temp_folder.h"

namespace dspack::test {

/// Layers 0 and 1 with `experts` FP8 experts each, whose gate and up have scales in another file.
class ExpertFolder {
 public:
  static constexpr uint32_t kHidden = 64;
  static constexpr uint32_t kInner = 64;

  explicit ExpertFolder(uint32_t experts);

  TempFolder folder;
  std::map<std::string, std::string> bytes;  // by tensor
};

class FakeTier final : public runtime::Tier {
 public:
  explicit FakeTier(const ExpertFolder& experts);

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
  void set_tier(runtime::Medium tier) { tier_ = tier; }
  /// Before a store is made.
  void set_depth(unsigned depth) { depth_ = depth; }
  void set_verify(bool verify) { verify_ = verify; }
  void fail_keeping() { fails_keeping_ = true; }
  /// Gives every tensor the digest of its bytes, as a manifest would.
  void add_digests(const ExpertFolder& experts);

  // What it sees -------------------------------------------------------------------------------------------------

  /// Waits until reads of so many experts are held back.
  void wait_for_held(size_t experts);
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

  // Tier ------------------------------------------------------------------------------------------------

  [[nodiscard]] const format::Checkpoint& checkpoint() const override { return checkpoint_; }

  Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into, const std::stop_token& stop) override;

  [[nodiscard]] runtime::Medium medium_of(ExpertKey) const override { return tier_; }
  [[nodiscard]] bool must_verify(ExpertKey) const override { return verify_; }
  Result<void> keep(ExpertKey key, std::span<const runtime::TensorBytes> tensors, const std::stop_token&) override;
  // Two blocks an expert: the reads of four experts can be held back at once.
  [[nodiscard]] uint64_t block_bytes(uint32_t /*file*/) const override { return 1 << 20; }
  [[nodiscard]] unsigned depth() const override { return depth_; }

 private:
  struct Place {
    ExpertKey key;
    bool is_first = false;  // the first byte of the expert's first tensor
  };

  [[nodiscard]] std::optional<Place> place_of(uint32_t file, uint64_t offset) const;
  Result<void> pass(const Place& place, const std::stop_token& stop);

  std::unique_ptr<format::Repository> repository_;
  format::Checkpoint checkpoint_;
  std::unique_ptr<runtime::FolderTier> inner_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  bool is_held_ = false;
  std::set<ExpertKey> through_, held_;
  std::map<ExpertKey, int> failing_, spoiled_, loads_;
  std::map<ExpertKey, std::string> kept_;
  runtime::Medium tier_ = runtime::Medium::disk;
  unsigned depth_ = 8;
  bool verify_ = false;
  bool fails_keeping_ = false;
};

}  // namespace dspack::test
