// Several tiers that each hold some files of a catalogue: a read goes to the tier that has the file. An expert is in
// one tier. Threads: thread-safe. Lifetime: owns the tiers; borrows the catalogue. Errors: those of the tiers.
#pragma once

#include <memory>
#include <vector>

#include "runtime/access/tier.h"

namespace dspack::runtime {

class OverlayTier final : public Tier {
 public:
  /// The catalogue's files are those of the tiers' catalogues, tier by tier. `own`: for each tensor of the catalogue,
  /// its index in its tier's catalogue.
  OverlayTier(const format::Checkpoint& catalogue, std::vector<uint32_t> own, std::vector<std::unique_ptr<Tier>> tiers);

  [[nodiscard]] const format::Checkpoint& checkpoint() const override { return catalogue_; }
  [[nodiscard]] Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into,
                                  const std::stop_token& stop) override;
  [[nodiscard]] Medium medium_of(ExpertKey expert) const override { return tier_of(expert).medium_of(expert); }
  [[nodiscard]] bool must_verify(ExpertKey expert) const override { return tier_of(expert).must_verify(expert); }
  [[nodiscard]] std::optional<format::Digest> digest_of(const format::TensorEntry& tensor) const override;
  void trust(ExpertKey expert) override { tier_of(expert).trust(expert); }
  [[nodiscard]] bool distrust(ExpertKey expert) override { return tier_of(expert).distrust(expert); }
  [[nodiscard]] Result<void> expect(std::span<const format::Extent> extents, const std::stop_token& stop) override;
  [[nodiscard]] Result<void> keep(ExpertKey expert, std::span<const TensorBytes> tensors,
                                  const std::stop_token& stop) override;
  [[nodiscard]] bool is_distant() const override;
  [[nodiscard]] std::optional<NetworkTraffic> traffic() const override;
  [[nodiscard]] uint64_t block_bytes(uint32_t file) const override;
  [[nodiscard]] unsigned depth() const override;

 private:
  struct Layer {
    std::unique_ptr<Tier> tier;
    uint32_t first_file = 0;  // in the catalogue
  };
  [[nodiscard]] const Layer& layer_of(uint32_t file) const;
  [[nodiscard]] Tier& tier_of(ExpertKey expert) const;
  /// The tensor's entry in its tier's catalogue.
  [[nodiscard]] const format::TensorEntry& own_entry(const format::TensorEntry& tensor) const;

  const format::Checkpoint& catalogue_;
  std::vector<uint32_t> own_;
  std::vector<Layer> layers_;
};

}  // namespace dspack::runtime
