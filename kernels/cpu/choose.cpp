#include "kernels/cpu/choose.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/cpu/products.h"

namespace dspack::kernels {
namespace {

// Positions whose scores are looked at together.
constexpr uint32_t kBlockPositions = 512;
// A shorter range of positions is not worth a thread and a merge.
constexpr uint32_t kLeastRange = 2048;

/// A number that orders scores: -0 equals 0, and a NaN is the largest.
uint32_t order_of(float score) {
  if (std::isnan(score)) return UINT32_MAX;
  const auto bits = std::bit_cast<uint32_t>(score + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// The `most` best of the scores that it has seen: the largest, and the lowest positions of equals.
class Best {
 public:
  explicit Best(uint32_t most) : most_(most) {}

  void see(uint32_t first, std::span<const float> scores) {
    for (const float score : scores) {
      // Larger is better; a lower position makes a larger entry.
      const uint64_t entry = uint64_t{order_of(score)} << 32 | (UINT32_MAX - first++);
      if (entry > bar_) add(entry);
    }
  }
  void see(const Best& other) {
    for (const uint64_t entry : other.found_) {
      if (entry > bar_) add(entry);
    }
  }
  /// Ascending; returns how many.
  uint32_t write(uint32_t* ids) {
    cut();
    std::ranges::transform(found_, ids, [](uint64_t entry) { return UINT32_MAX - static_cast<uint32_t>(entry); });
    std::sort(ids, ids + found_.size());
    return static_cast<uint32_t>(found_.size());
  }

 private:
  void add(uint64_t entry) {
    found_.push_back(entry);
    if (found_.size() == 2 * size_t{most_}) cut();
  }
  void cut() {
    if (found_.size() <= most_) return;
    std::nth_element(found_.begin(), found_.begin() + most_ - 1, found_.end(), std::greater());
    found_.resize(most_);
    bar_ = found_.back();
  }

  uint32_t most_;
  uint64_t bar_ = 0;  // what is not larger has `most` better ones
  std::vector<uint64_t> found_;
};

auto index_function(const CpuOps& ops, Coding coding) {
  if (coding == Coding::bf16) return ops.index_bf16;
  if (coding == Coding::f16) return ops.index_f16;
  if (coding == Coding::f8_e4m3) return ops.index_f8_e4m3;
  return ops.index_f32;
}

struct Scorer {
  const CpuOps& ops;
  const ChooseArgs& args;

  /// Shows `best` the scores of a row for positions [begin, end).
  void run(uint32_t row, uint32_t begin, uint32_t end, std::vector<float>& tile, Best& best) const {
    const Weight& keys = args.keys;
    const auto function = index_function(ops, keys.coding);
    std::vector<float> scores(kBlockPositions);
    tile.resize(uint64_t{keys.in} * kIndexTile);
    for (uint32_t first = begin; first < end; first += kBlockPositions) {
      const uint32_t count = std::min(kBlockPositions, end - first);
      const Slice scales = keys.planes[kScales];
      function({.queries = floats(args.queries) + uint64_t{row} * args.heads * keys.in,
                .weights = floats(args.weights) + uint64_t{row} * args.heads,
                .keys = host(keys.planes[kCodes]) + first * code_bytes(keys.coding, keys.in),
                .scales = scales.empty() ? nullptr : floats(scales) + first,
                .heads = args.heads,
                .dim = keys.in,
                .positions = count,
                .tile = tile.data(),
                .scores = scores.data()});
      best.see(first, std::span(scores).first(count));
    }
  }
};

}  // namespace

void choose_positions(const CpuOps& ops, Workers& workers, const ChooseArgs& args, uint32_t position) {
  const uint32_t most = args.choice.most;
  auto* const ids = reinterpret_cast<uint32_t*>(host(args.choice.ids));
  auto* const counts = reinterpret_cast<uint32_t*>(host(args.choice.counts));
  // Rows that see no more positions than they may choose come first.
  const uint32_t whole = position + 1 > most ? 0 : std::min(args.rows, most - position);
  for (uint32_t row = 0; row < whole; ++row) {
    counts[row] = position + row + 1;
    std::iota(ids + uint64_t{row} * most, ids + uint64_t{row} * most + counts[row], 0U);
  }
  const uint32_t rows = args.rows - whole;
  if (rows == 0) return;

  const uint32_t longest = position + args.rows;
  const uint32_t wanted = rows >= workers.threads() ? 1 : (workers.threads() - 1) / rows + 1;
  const uint32_t ranges = std::clamp(longest / kLeastRange, 1U, wanted);
  const Scorer scorer{.ops = ops, .args = args};
  std::vector<Best> best(uint64_t{rows} * ranges, Best(most));  // [rows, ranges]
  workers.split(rows * ranges, uint64_t{longest} / ranges * args.heads * args.keys.in,
                [&](uint32_t begin, uint32_t end) {
                  std::vector<float> tile;
                  for (uint32_t item = begin; item < end; ++item) {
                    const uint32_t row = whole + item / ranges;
                    const uint32_t range = item % ranges;
                    const uint64_t seen = uint64_t{position} + row + 1;
                    scorer.run(row, static_cast<uint32_t>(seen * range / ranges),
                               static_cast<uint32_t>(seen * (range + 1) / ranges), tile, best[item]);
                  }
                });
  workers.split(rows, uint64_t{most} * 32, [&](uint32_t begin, uint32_t end) {
    for (uint32_t row = begin; row < end; ++row) {
      Best& first = best[uint64_t{row} * ranges];
      for (uint32_t range = 1; range < ranges; ++range)
        first.see(best[uint64_t{row} * ranges + range]);
      counts[whole + row] = first.write(ids + uint64_t{whole + row} * most);
    }
  });
}

}  // namespace dspack::kernels
