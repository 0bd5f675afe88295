// Tensors that are read by rows (the embedding): each block of rows is fetched when one of its rows is first read,
// checked against its digest, and kept in the cache.
// Threads: thread-safe. Lifetime: borrows everything. Memory: some blocks, if the disk is full. Errors: those of the
// origin and the disk; corrupt (a block had a wrong digest twice), naming file and tensor.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "runtime/access/fetch_context.h"

namespace dspack::runtime {

class RowFetcher {
 public:
  explicit RowFetcher(const FetchContext& context);

  /// Whether the tensor is read by rows.
  [[nodiscard]] bool has_blocks(uint32_t tensor) const { return rows_[tensor] != 0; }
  /// Fills `into` with bytes of the tensor, from `offset` relative to its first.
  [[nodiscard]] Result<void> read(uint32_t tensor, uint64_t offset, std::span<std::byte> into,
                                  const std::stop_token& stop);
  /// Fetches all missing blocks of these ranges (relative to the tensor), several in parallel.
  [[nodiscard]] Result<void> fetch(uint32_t tensor, std::span<const ByteRange> ranges, const std::stop_token& stop);
  [[nodiscard]] uint64_t cache_bytes() const { return cache_bytes_; }

 private:
  using BlockKey = std::pair<uint32_t, uint64_t>;  // tensor, number
  struct Fetched {
    std::vector<std::byte> bytes;
    format::Digest digest;
  };
  [[nodiscard]] ByteRange range_of(uint32_t tensor, uint64_t block) const;
  /// Whether a block that an earlier run kept still has its digest.
  [[nodiscard]] bool check_kept(uint32_t tensor, uint64_t block);
  [[nodiscard]] Result<Fetched> fetch_block(uint32_t tensor, uint64_t block, const std::stop_token& stop);
  [[nodiscard]] Result<void> ensure(uint32_t tensor, const std::set<uint64_t>& blocks, const std::stop_token& stop);
  [[nodiscard]] Result<void> keep(uint32_t tensor, std::map<uint64_t, Fetched>&& fetched);

  FetchContext context_;
  std::vector<uint64_t> rows_;  // per block, by tensor; 0: not read by rows
  std::mutex mutex_;
  std::set<BlockKey> checked_;                            // guarded by mutex_: in the cache, and verified in this run
  std::map<BlockKey, std::vector<std::byte>> in_memory_;  // guarded by mutex_: blocks that the cache has no space for
  std::atomic<uint64_t> cache_bytes_{0};
};

}  // namespace dspack::runtime
