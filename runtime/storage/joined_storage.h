// The weights of a model of which a part lies in one storage and the rest in another: every read goes to the one that
// has the file. An expert lies in one of the two.
// Threads: thread-safe. Lifetime: owns the two storages; borrows the catalogue. Errors: those of the two.
#pragma once

#include <memory>
#include <vector>

#include "runtime/storage/weight_storage.h"

namespace dspack::runtime {

class JoinedStorage final : public WeightStorage {
 public:
  /// `catalogue` and `own`: of a format::Completion of the two storages' catalogues.
  JoinedStorage(const format::Checkpoint& catalogue, std::vector<uint32_t> own, std::unique_ptr<WeightStorage> part,
                std::unique_ptr<WeightStorage> rest);

  [[nodiscard]] const format::Checkpoint& checkpoint() const override { return catalogue_; }
  [[nodiscard]] Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into,
                                  const std::stop_token& stop) override {
    return storage_of(file).read(own_file(file), offset, into, stop);
  }
  [[nodiscard]] StorageTier tier_of(ExpertKey expert) const override { return storage_of(expert).tier_of(expert); }
  [[nodiscard]] bool must_verify(ExpertKey expert) const override { return storage_of(expert).must_verify(expert); }
  [[nodiscard]] std::optional<format::Digest> digest_of(const format::TensorEntry& tensor) const override;
  void trust(ExpertKey expert) override { storage_of(expert).trust(expert); }
  [[nodiscard]] bool distrust(ExpertKey expert) override { return storage_of(expert).distrust(expert); }
  [[nodiscard]] Result<void> expect(std::span<const format::Extent> extents, const std::stop_token& stop) override;
  [[nodiscard]] Result<void> keep(ExpertKey expert, std::span<const TensorBytes> tensors,
                                  const std::stop_token& stop) override;
  [[nodiscard]] bool is_distant() const override { return part_->is_distant() || rest_->is_distant(); }
  [[nodiscard]] uint64_t block_bytes(uint32_t file) const override {
    return storage_of(file).block_bytes(own_file(file));
  }
  [[nodiscard]] unsigned depth() const override { return std::max(part_->depth(), rest_->depth()); }

 private:
  [[nodiscard]] bool is_of_part(uint32_t file) const { return file < part_files_; }
  [[nodiscard]] uint32_t own_file(uint32_t file) const { return is_of_part(file) ? file : file - part_files_; }
  [[nodiscard]] WeightStorage& storage_of(uint32_t file) const { return is_of_part(file) ? *part_ : *rest_; }
  [[nodiscard]] WeightStorage& storage_of(ExpertKey expert) const;
  /// The tensor as its storage's catalogue has it.
  [[nodiscard]] const format::TensorEntry& own_entry(const format::TensorEntry& tensor) const;

  const format::Checkpoint& catalogue_;
  std::vector<uint32_t> own_;
  std::unique_ptr<WeightStorage> part_;
  std::unique_ptr<WeightStorage> rest_;
  uint32_t part_files_;  // the first of the catalogue's; the others are the rest's
};

}  // namespace dspack::runtime
