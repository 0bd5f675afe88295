#include "runtime/weights/equal_tensors.h"

#include <algorithm>
#include <vector>

namespace dspack::runtime {

namespace {

// Large enough that a read is not dominated by its call.
constexpr uint64_t kPieceBytes = 4ULL << 20;
// Piece size for a tensor that would have to be fetched.
constexpr uint64_t kSampleBytes = 1ULL << 20;

// Offsets of the pieces to compare, of at most `piece` bytes each.
std::vector<uint64_t> places_of(uint64_t total, uint64_t piece, bool only_samples) {
  if (only_samples && total > 3 * piece) return {0, (total - piece) / 2, total - piece};
  std::vector<uint64_t> places;
  for (uint64_t at = 0; at < total; at += piece)
    places.push_back(at);
  return places;
}

}  // namespace

Result<bool> are_equal(CheckpointAccess& access, const format::TensorEntry& a, const format::TensorEntry& b,
                       const std::stop_token& stop) {
  if (a.dtype != b.dtype || a.shape != b.shape || bits_of(a.dtype) < 16) return false;
  if (a.digest && b.digest) return *a.digest == *b.digest;
  const bool is_distant = access.weights().is_distant();
  std::vector<std::byte> left(std::min(is_distant ? kSampleBytes : kPieceBytes, a.range.size()));
  std::vector<std::byte> right(left.size());
  for (const uint64_t done : places_of(a.range.size(), left.size(), is_distant)) {
    const uint64_t count = std::min<uint64_t>(left.size(), a.range.size() - done);
    const auto piece_a = std::span(left).first(count);
    const auto piece_b = std::span(right).first(count);
    TRY(access.read(a, done, piece_a, WeightPurpose::always_needed, stop));
    TRY(access.read(b, done, piece_b, WeightPurpose::always_needed, stop));
    if (!std::ranges::equal(piece_a, piece_b)) return false;
  }
  return true;
}

}  // namespace dspack::runtime
