// The tier of a distant repository, through a cache folder on disk. Weights that every token needs are fetched whole,
// embeddings by blocks of rows, experts when they are read. Nothing is fetched twice while the cache holds it, and no
// bytes are returned unchecked: experts are checked by their loader (must_verify), the rest here. Threads: thread-safe.
// Lifetime: borrows its parts. Memory: the transfers in flight; with a full disk one tensor and some blocks of rows.
// Errors: see tier.h.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "format/cache/weight_cache.h"
#include "format/progress.h"
#include "runtime/access/row_fetcher.h"
#include "runtime/access/tensor_fetcher.h"
#include "runtime/access/tier.h"

namespace dspack::runtime {

struct DistantTierOptions {
  uint64_t disk_bytes = 0;       // bound on the cache; 0: none
  uint64_t stay_free_bytes = 0;  // CacheLimit::stay_free_bytes
  unsigned connections = 8;      // in parallel
};

/// Parts that a distant tier borrows.
struct DistantParts {
  format::Repository& files;                 // weights uncompressed, small files through the cache
  format::CacheFolder& folder;               // this place's cache
  const format::TransferCounters& counters;  // all requests to the place
  format::Progress& progress;
};

class DistantTier final : public Tier {
 public:
  /// Adds the digests that earlier runs recorded to the catalogue. `wanted`: the tensors that will be read; nullopt:
  /// all. Errors: also budget, if the cache's bound is too small for those of them that every token needs.
  [[nodiscard]] static Result<std::unique_ptr<DistantTier>> open(const DistantParts& parts,
                                                                 format::Checkpoint& catalogue,
                                                                 const DistantTierOptions& options,
                                                                 std::optional<std::span<const uint32_t>> wanted = {});

  [[nodiscard]] const format::Checkpoint& checkpoint() const override { return origin_.catalogue(); }
  /// Bytes that belong to no tensor (headers, gaps) read as zeros.
  [[nodiscard]] Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into,
                                  const std::stop_token& stop) override;
  [[nodiscard]] Medium medium_of(ExpertKey expert) const override;
  [[nodiscard]] bool must_verify(ExpertKey expert) const override;
  [[nodiscard]] std::optional<format::Digest> digest_of(const format::TensorEntry& tensor) const override;
  void trust(ExpertKey expert) override;
  [[nodiscard]] bool distrust(ExpertKey expert) override;
  /// Fetches everything in these ranges but experts, which are fetched when they are read.
  [[nodiscard]] Result<void> expect(std::span<const format::Extent> extents, const std::stop_token& stop) override;
  [[nodiscard]] Result<void> keep(ExpertKey expert, std::span<const TensorBytes> tensors,
                                  const std::stop_token& stop) override;
  [[nodiscard]] bool is_distant() const override { return true; }
  [[nodiscard]] uint64_t block_bytes(uint32_t /*file*/) const override { return kBlockBytes; }
  [[nodiscard]] unsigned depth() const override { return options_.connections; }

  [[nodiscard]] std::optional<NetworkTraffic> traffic() const override;

 private:
  static constexpr uint64_t kBlockBytes = 4ULL << 20;

  /// The part of a tensor that a range covers.
  struct TensorRange {
    uint32_t tensor = 0;
    ByteRange in_tensor;
    std::span<std::byte> into;
  };

  DistantTier(const DistantParts& parts, const format::Checkpoint& catalogue,
              std::unique_ptr<format::WeightCache> cache, const DistantTierOptions& options);
  [[nodiscard]] std::vector<TensorRange> pieces_of(uint32_t file, ByteRange range, std::span<std::byte> into) const;
  Result<void> read_expert(ExpertKey expert, const TensorRange& piece, const std::stop_token& stop);
  Result<void> read_whole(const TensorRange& piece, const std::stop_token& stop);
  /// Checks or fetches tensors that are read whole, so that the cache has them, if it has space.
  Result<void> ensure(std::vector<uint32_t> tensors, format::Progress& progress, const std::stop_token& stop);
  [[nodiscard]] bool check_kept(uint32_t tensor);
  Result<void> load_into_memory(uint32_t tensor, const std::stop_token& stop);
  void count_cache(WeightPurpose purpose, uint64_t bytes) { cache_bytes_[static_cast<size_t>(purpose)] += bytes; }

  DistantTierOptions options_;
  DistantParts parts_;
  DistantFiles origin_;
  std::unique_ptr<format::WeightCache> cache_;
  CacheSpace space_;
  TensorFetcher tensors_;
  RowFetcher rows_;
  std::vector<std::vector<uint32_t>> by_file_;  // tensors of each file, by offset
  std::mutex whole_mutex_;                      // one thread at a time fetches tensors that are read whole
  std::vector<std::atomic<bool>> is_checked_;   // by tensor: in the cache, and verified in this run
  std::optional<uint32_t> in_memory_;           // guarded by whole_mutex_: a tensor that the cache has no space for
  std::vector<std::byte> memory_;               // guarded by whole_mutex_: its bytes
  mutable std::mutex expert_mutex_;
  std::set<ExpertKey> verified_;  // guarded by expert_mutex_: in the cache, with the right digests when last used
  std::array<std::atomic<uint64_t>, kWeightPurposes> cache_bytes_{};
};

}  // namespace dspack::runtime
