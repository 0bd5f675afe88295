// Where the bytes of a checkpoint's weights come from while a model runs: a local folder, a place across the network
// with a cache on disk, or one of these for a part of the weights and one for the rest. One address space for all: a
// file of the catalogue and a range in it; where these bytes lie at the moment is the storage's business.
// Threads: thread-safe; many reads run at once. Lifetime: borrows the catalogue. Errors: not_found, io, network,
// corrupt (a file's length is not what the catalogue says, a digest does not fit), budget (no space for the cache),
// cancelled; each names the file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>

#include "format/base/result.h"
#include "format/checkpoint.h"

namespace dspack::runtime {

/// Below memory.
enum class StorageTier { disk, network };

/// A tensor's bytes in memory.
struct TensorBytes {
  const format::TensorEntry* tensor = nullptr;
  std::span<const std::byte> bytes;
};

class WeightStorage {
 public:
  virtual ~WeightStorage() = default;
  [[nodiscard]] virtual const format::Checkpoint& checkpoint() const = 0;

  /// Fills `into` with the bytes of a file (index into Checkpoint::files) from `offset`. Large reads whose memory and
  /// offset are equally aligned to pages may go to the disk directly.
  [[nodiscard]] virtual Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into,
                                          const std::stop_token& stop) = 0;

  /// Where reading the expert would take its bytes from.
  [[nodiscard]] virtual StorageTier tier_of(ExpertKey expert) const = 0;
  /// Whether the expert's tensors must be checked before they are used, as far as `digest_of` knows what they must
  /// be.
  [[nodiscard]] virtual bool must_verify(ExpertKey expert) const = 0;
  /// SHA-256 that a tensor of an expert must have: the catalogue's, or that of an earlier fetch. nullopt: none is
  /// known.
  [[nodiscard]] virtual std::optional<format::Digest> digest_of(const format::TensorEntry& tensor) const {
    return tensor.digest;
  }
  /// The expert was read whole, and its bytes had their digests: while nothing replaces them, they need no check again.
  virtual void trust(ExpertKey /*expert*/) {}
  /// The expert's bytes did not have their digests. True: another read may bring others, since they came from a cache,
  /// where they are no longer.
  [[nodiscard]] virtual bool distrust(ExpertKey /*expert*/) { return false; }
  /// These ranges will be read soon. A storage that is far away fetches them together; others have nothing to do.
  [[nodiscard]] virtual Result<void> expect(std::span<const format::Extent> /*extents*/,
                                            const std::stop_token& /*stop*/) {
    return {};
  }
  /// The expert was read whole, checked and is in memory: a storage with a cache writes it there, so that it is never
  /// fetched again. `tensors`: all of the expert's, in Checkpoint::expert order. Nothing to do: success.
  [[nodiscard]] virtual Result<void> keep(ExpertKey expert, std::span<const TensorBytes> tensors,
                                          const std::stop_token& stop) = 0;

  /// Whether reading costs a transfer over a network, at least the first time.
  [[nodiscard]] virtual bool is_distant() const { return false; }
  /// Bytes that one read of this file should have at most, so that several go on at once.
  [[nodiscard]] virtual uint64_t block_bytes(uint32_t file) const = 0;
  /// Reads that should go on at once.
  [[nodiscard]] virtual unsigned depth() const = 0;
};

}  // namespace dspack::runtime
