// A tier of a checkpoint's weights: a local folder, a distant place with its cache folder, or several tiers that each
// hold a part. All share one address space: a file of the catalogue and a range in it. Threads: thread-safe; many reads
// run in parallel. Lifetime: borrows the catalogue. Errors: not_found, io, network, corrupt (a file's length is not
// what the catalogue says, a digest does not match), budget (no space for the cache), cancelled; each names the file.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>

#include "format/base/result.h"
#include "format/checkpoint.h"

namespace dspack::runtime {

/// Where a tier's bytes are at the moment.
enum class Medium { disk, network };

/// The purpose of reading weights.
enum class WeightPurpose { always_needed, embedding, experts };
inline constexpr size_t kWeightPurposes = 3;
/// Bytes by WeightPurpose.
using PurposeBytes = std::array<uint64_t, kWeightPurposes>;

/// A run's traffic so far: over a network, and from a cache folder.
struct NetworkTraffic {
  PurposeBytes network_bytes{};
  PurposeBytes cache_bytes{};
  uint64_t refetches = 0;  // after a digest mismatch
  uint64_t cache_size_bytes = 0;
  uint64_t requests = 0;
  uint64_t resolutions = 0;  // requests that were answered with a link
  uint64_t retries = 0;
  uint64_t body_bytes = 0;  // all answers, catalogue and small files included

  NetworkTraffic& operator+=(const NetworkTraffic& other) {
    for (size_t i = 0; i < kWeightPurposes; ++i) {
      network_bytes[i] += other.network_bytes[i];
      cache_bytes[i] += other.cache_bytes[i];
    }
    refetches += other.refetches;
    cache_size_bytes += other.cache_size_bytes;
    requests += other.requests;
    resolutions += other.resolutions;
    retries += other.retries;
    body_bytes += other.body_bytes;
    return *this;
  }
};

/// A tensor's bytes in memory.
struct TensorBytes {
  const format::TensorEntry* tensor = nullptr;
  std::span<const std::byte> bytes;
};

/// Loading an expert: read() its tensors; if must_verify(), compare each with digest_of(), then trust() the expert, or
/// distrust() it and read it again. keep() an expert that came over a network.
class Tier {
 public:
  virtual ~Tier() = default;
  [[nodiscard]] virtual const format::Checkpoint& checkpoint() const = 0;

  /// Fills `into` with the bytes of a file (index into Checkpoint::files) from `offset`. Large reads whose memory and
  /// offset are equally aligned to pages may go to the disk directly.
  [[nodiscard]] virtual Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into,
                                          const std::stop_token& stop) = 0;

  /// Whether `map` works.
  [[nodiscard]] virtual bool can_map() const { return false; }
  /// ReadFile::map of a file's bytes. Errors: also unsupported (read() may still work).
  [[nodiscard]] virtual Result<void> map(uint32_t /*file*/, uint64_t /*offset*/, std::span<std::byte> /*over*/) {
    return Error{ErrorKind::unsupported, "these weights cannot be used where they lie"};
  }

  /// Where a read of the expert would take its bytes from.
  [[nodiscard]] virtual Medium medium_of(ExpertKey expert) const = 0;
  /// Whether the caller must check the expert's tensors before use, as far as `digest_of` has their digests.
  [[nodiscard]] virtual bool must_verify(ExpertKey expert) const = 0;
  /// The SHA-256 that an expert's tensor must have: the catalogue's, or an earlier fetch's. nullopt: neither is known.
  [[nodiscard]] virtual std::optional<format::Digest> digest_of(const format::TensorEntry& tensor) const {
    return tensor.digest;
  }
  /// The expert was read whole and its digests matched: no further check is needed until its bytes are replaced.
  virtual void trust(ExpertKey /*expert*/) {}
  /// The expert's digests did not match. True: it came from a cache and was dropped there, so another read may succeed.
  [[nodiscard]] virtual bool distrust(ExpertKey /*expert*/) { return false; }
  /// These ranges will be read soon. A distant tier fetches them together; others have nothing to do.
  [[nodiscard]] virtual Result<void> expect(std::span<const format::Extent> /*extents*/,
                                            const std::stop_token& /*stop*/) {
    return {};
  }
  /// The expert was read whole, was checked, and is in memory: a tier with a cache writes it there, so that it is not
  /// fetched again. `tensors`: all of the expert's, in Checkpoint::expert order. Other tiers do nothing and succeed.
  [[nodiscard]] virtual Result<void> keep(ExpertKey expert, std::span<const TensorBytes> tensors,
                                          const std::stop_token& stop) = 0;

  /// Whether reading needs a network transfer, at least the first time.
  [[nodiscard]] virtual bool is_distant() const { return false; }
  /// nullopt: the tier uses no network.
  [[nodiscard]] virtual std::optional<NetworkTraffic> traffic() const { return std::nullopt; }
  /// The most bytes that one read of this file should have, so that several reads run in parallel.
  [[nodiscard]] virtual uint64_t block_bytes(uint32_t file) const = 0;
  /// The number of reads that should run in parallel.
  [[nodiscard]] virtual unsigned depth() const = 0;
};

}  // namespace dspack::runtime
