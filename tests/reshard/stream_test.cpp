#include <doctest/doctest.h>

#include <algorithm>

#include "format/http/connections.h"
#include "reshard/run/stream.h"

namespace dspack::stream_test {

using dspack::reshard::connections_within_memory;
using dspack::reshard::piece_bytes;

namespace {

constexpr uint64_t kMiB = 1ULL << 20;
constexpr uint64_t kV3Tensors = 91'991;
constexpr unsigned kConnections = 16;

/// Most that is in memory at a time: one piece for each connection, and one that is handed on for each shard that has
/// two connections or more.
uint64_t pieces_in_memory(unsigned connections, uint64_t shards, uint64_t tensors) {
  const uint64_t sharing = std::min<uint64_t>(shards, connections / 2);
  return (connections + sharing) * piece_bytes(connections, shards, tensors);
}

}  // namespace

TEST_CASE("stream: pieces are whole units, and what is in memory leaves room for the plan") {
  for (const unsigned connections : {1U, 2U, 5U, 16U, 128U}) {
    for (const uint64_t shards : {1U, 4U, 163U}) {
      for (const uint64_t tensors : {uint64_t{1}, uint64_t{2'000}, kV3Tensors, uint64_t{10'000'000}}) {
        const uint64_t bytes = piece_bytes(connections, shards, tensors);
        CHECK(bytes % dspack::format::kPieceUnit == 0);
        CHECK(bytes >= dspack::format::kPieceUnit);
        CHECK(bytes <= 8 * kMiB);
      }
    }
  }
  // A round trip of 80 ms costs an eighth of the time of a piece at 12.5 MB/s.
  CHECK(piece_bytes(kConnections, 4, 2'000) == 8 * kMiB);
  CHECK(pieces_in_memory(kConnections, 163, 2'000) <= 192 * kMiB);
  CHECK(pieces_in_memory(kConnections, 163, kV3Tensors) <= 64 * kMiB);
  CHECK(pieces_in_memory(kConnections, 1, kV3Tensors) <= 72 * kMiB);  // only one shard has staging buffers
}

TEST_CASE("stream: as many connections as fit into the memory that the plan leaves, 16 to 64") {
  CHECK(connections_within_memory(8, 1'000) == 64);
  CHECK(connections_within_memory(163, 10'000'000) == 16);
  const unsigned of_v3 = connections_within_memory(163, kV3Tensors);
  CHECK(of_v3 > 16);
  CHECK(of_v3 < 64);
  CHECK(pieces_in_memory(64, 8, 1'000) <= 192 * kMiB);
}

}  // namespace dspack::stream_test
