#include "kernels/cpu/choose.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/products.h"

namespace dspack::kernels {
namespace {

// Positions whose scores are filtered together.
constexpr uint32_t kBlockPositions = 512;
// Most rows that share one transposition of a tile's keys.
constexpr uint32_t kMaxTogether = 4;
// A shorter range of positions does not pay for a thread and a merge.
constexpr uint32_t kLeastRange = 2048;

/// Maps scores to integers of the same order: -0 equals 0, and a NaN is the largest.
uint32_t order_of(float score) {
  if (std::isnan(score)) return UINT32_MAX;
  const auto bits = std::bit_cast<uint32_t>(score + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// Keeps the `most` best of the scores seen: the largest, and among equals those of the lowest positions.
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
  /// Writes the positions in ascending order; returns their number.
  uint32_t write(uint32_t* ids) {
    cut();
    std::ranges::transform(found_, ids, [](uint64_t entry) { return UINT32_MAX - static_cast<uint32_t>(entry); });
    std::sort(ids, ids + found_.size());
    return static_cast<uint32_t>(found_.size());
  }

 private:
  void add(uint64_t entry) {
    found_.reserve(2 * size_t{most_});  // a vector by itself would reserve more
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
  uint64_t bar_ = 0;  // an entry up to this has `most` better ones
  std::vector<uint64_t> found_;
};

auto index_function(const CpuOps& ops, Coding coding) {
  if (coding == Coding::bf16) return ops.index_bf16;
  if (coding == Coding::f16) return ops.index_f16;
  if (coding == Coding::f8_e4m3) return ops.index_f8_e4m3;
  return ops.index_f32;
}

/// Consecutive rows whose choices are computed together.
struct Batch {
  uint32_t first_row = 0;
  uint32_t rows = 0;
  uint32_t ranges = 1;  // number of ranges that the positions of a row are divided into
};

/// Work of one thread: rows that share the keys of one range of the positions that they see.
struct Share {
  uint32_t first_row = 0;
  uint32_t rows = 0;
  uint32_t range = 0;
};

class Chooser {
 public:
  Chooser(const CpuOps& ops, const ChooseArgs& args, uint32_t position, const Batch& batch)
      : args_(args),
        function_(index_function(ops, args.keys.coding)),
        position_(position),
        batch_(batch),
        best_(uint64_t{batch.rows} * batch.ranges, Best(args.choice.most)) {}

  void score(const Share& share) {
    const Weight& keys = args_.keys;
    const Slice scales = keys.planes[kScales];
    std::vector<float> tile(uint64_t{keys.in} * kIndexTile);
    std::vector<float> scores(uint64_t{share.rows} * kBlockPositions);
    const uint64_t seen = seen_by(share.first_row + share.rows - 1);  // the last row sees the most
    const auto end = static_cast<uint32_t>(seen * (share.range + 1) / batch_.ranges);
    for (auto first = static_cast<uint32_t>(seen * share.range / batch_.ranges); first < end;
         first += kBlockPositions) {
      const uint32_t count = std::min(kBlockPositions, end - first);
      function_({.queries = floats(args_.queries) + uint64_t{share.first_row} * args_.heads * keys.in,
                 .weights = floats(args_.weights) + uint64_t{share.first_row} * args_.heads,
                 .keys = host(keys.planes[kCodes]) + first * code_bytes(keys.coding, keys.in),
                 .scales = scales.empty() ? nullptr : floats(scales) + first,
                 .rows = share.rows,
                 .heads = args_.heads,
                 .dim = keys.in,
                 .positions = count,
                 .tile = tile.data(),
                 .scores = scores.data(),
                 .scores_stride = kBlockPositions});
      for (uint32_t i = 0; i < share.rows; ++i) {
        const uint32_t row = share.first_row + i;
        const uint32_t sees = std::min(count, seen_by(row) - std::min(seen_by(row), first));
        best_of(row, share.range).see(first, std::span(scores).subspan(uint64_t{i} * kBlockPositions, sees));
      }
    }
  }

  void write(uint32_t row) {
    Best& best = best_of(row, 0);
    for (uint32_t range = 1; range < batch_.ranges; ++range)
      best.see(best_of(row, range));
    auto* const ids = reinterpret_cast<uint32_t*>(host(args_.choice.ids)) + uint64_t{row} * args_.choice.most;
    reinterpret_cast<uint32_t*>(host(args_.choice.counts))[row] = best.write(ids);
  }

 private:
  [[nodiscard]] uint32_t seen_by(uint32_t row) const { return (position_ + row + 1) / args_.every; }
  [[nodiscard]] Best& best_of(uint32_t row, uint32_t range) {
    return best_[uint64_t{row - batch_.first_row} * batch_.ranges + range];
  }

  const ChooseArgs& args_;
  void (*function_)(const IndexScoresTask& task);
  uint32_t position_;
  Batch batch_;
  std::vector<Best> best_;  // [rows of the batch, ranges]
};

void choose_all(const ChooseArgs& args, uint32_t row, uint32_t count) {
  auto* const ids = reinterpret_cast<uint32_t*>(host(args.choice.ids)) + uint64_t{row} * args.choice.most;
  std::iota(ids, ids + count, 0U);
  reinterpret_cast<uint32_t*>(host(args.choice.counts))[row] = count;
}

}  // namespace

uint64_t most_choose_bytes(unsigned threads, uint32_t most, uint32_t dim) {
  const uint64_t scoring = uint64_t{dim} * kIndexTile + uint64_t{kMaxTogether} * kBlockPositions;
  // A batch has fewer than two shares per thread, each of up to kMaxTogether rows.
  const uint64_t best = uint64_t{2} * kMaxTogether * 2 * most * sizeof(uint64_t);
  return threads * (scoring * sizeof(float) + best);
}

void choose_positions(const CpuOps& ops, Workers& workers, const ChooseArgs& args, uint32_t position) {
  const uint32_t most = args.choice.most;
  // The first rows see no more positions than they may choose, so they choose all.
  const uint64_t last_whole = (uint64_t{most} + 1) * args.every - 1;  // most positions up to such a row's own
  const auto whole =
      static_cast<uint32_t>(std::min<uint64_t>(args.rows, last_whole - std::min<uint64_t>(last_whole, position)));
  for (uint32_t row = 0; row < whole; ++row)
    choose_all(args, row, (position + row + 1) / args.every);
  const uint32_t threads = workers.threads();
  const uint32_t together = std::clamp((args.rows - whole) / threads, 1U, kMaxTogether);
  // One group of rows per thread at a time, so that the memory for candidates depends on threads, not on rows.
  for (uint32_t row = whole; row < args.rows; row += together * threads) {
    const uint32_t rows = std::min(together * threads, args.rows - row);
    const uint32_t groups = (rows - 1) / together + 1;
    const uint32_t longest = (position + row + rows) / args.every;
    const uint32_t wanted = (threads - 1) / groups + 1;
    const Batch batch{.first_row = row, .rows = rows, .ranges = std::clamp(longest / kLeastRange, 1U, wanted)};
    Chooser chooser(ops, args, position, batch);
    const uint64_t cost = uint64_t{longest} / batch.ranges * args.heads * args.keys.in * together;
    workers.split(groups * batch.ranges, cost, [&](uint32_t begin, uint32_t end) {
      for (uint32_t item = begin; item < end; ++item) {
        const uint32_t first = item / batch.ranges * together;
        chooser.score(
            {.first_row = row + first, .rows = std::min(together, rows - first), .range = item % batch.ranges});
      }
    });
    workers.split(rows, uint64_t{most} * 32, [&](uint32_t begin, uint32_t end) {
      for (uint32_t i = begin; i < end; ++i)
        chooser.write(row + i);
    });
  }
}

}  // namespace dspack::kernels
