// How a choice is cut into runs of rows, and the second of its two kernels, which a block runs for each row.
//
// Entries, one a position, are ordered strictly: the order of the score, then the lower position. So there is one least
// entry that is chosen; its bits are found from the top, a digit of eleven or ten bits at a time, by counting those of
// all entries that agree so far:
//
//   orders (global) --count--> digit --count..--> least entry
//       \ once those that agree with it are few: a list in shared memory, from which the other digits come
//   a flag for each chosen position (global) --> ids, ascending
//
// Flags lie as a warp finds them: of a chunk of 128 positions, word i has bit l for position 4 l + i.
#include "kernels/cuda/choose.h"

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/device/choose.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr uint64_t kOrderBytes = 32ULL << 20;  // of a run at most, but for one row
constexpr uint32_t kMostScoreBlocks = 1024;    // in x; each takes every so manieth tile
constexpr uint32_t kWantedScoreBlocks = 512;   // that keep a large GPU busy
constexpr uint32_t kMostRowsOfBlock = 8;
constexpr unsigned kMostSelectWarps = 32;

constexpr unsigned kMostDigitBits = 11;
constexpr uint32_t kCounts = 1U << kMostDigitBits;
constexpr uint32_t kCountGroups = 32;
constexpr uint32_t kOfGroup = kCounts / kCountGroups;
constexpr uint32_t kListed = 4096;

/// Shared memory of a block.
struct SelectSpace {
  uint64_t list[kListed];  // entries
  uint32_t counts[kCounts];
  uint32_t groups[kCountGroups];        // sums of counts
  uint32_t of_warps[kMostSelectWarps];  // chosen positions
  uint32_t listed;
  uint32_t digit;    // what find_count_digit found
  uint32_t place;    // within the digit's entries, from the largest
  uint32_t entries;  // that have the digit
};

/// The row of a block.
struct SelectRow {
  const uint4* orders;  // [chunks, 32 lanes]
  uint4* flags;         // [chunks]
  uint32_t positions;
  uint32_t chunks;
};

__device__ __forceinline__ uint64_t entry_of(uint32_t order, uint32_t position) {
  return uint64_t{order} << 32U | (0xffffffffU - position);
}
__device__ __forceinline__ uint32_t position_of(uint64_t entry) {
  return 0xffffffffU - static_cast<uint32_t>(entry);
}

/// Of the lanes up to this one.
__device__ __forceinline__ uint32_t count_so_far(uint32_t value) {
#pragma unroll
  for (unsigned apart = 1; apart < gpu::kWarpThreads; apart *= 2) {
    const uint32_t other = gpu::shuffle(value, gpu::lane_index() - apart);
    if (gpu::lane_index() >= apart) value += other;
  }
  return value;
}

/// visit(chunk, entries, are_there) for chunks of 128 positions by the warps in turn: the four entries of each lane.
template <class Visit>
__device__ __forceinline__ void for_each_chunk(const SelectRow& row, Visit visit) {
  constexpr unsigned kAhead = 4;  // loads under way before the first is used
  const uint32_t warps = gpu::block_threads() / gpu::kWarpThreads;
  for (uint32_t first = gpu::warp_index(); first < row.chunks; first += kAhead * warps) {
    uint4 orders[kAhead];
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) {
      const uint32_t chunk = first + i * warps;
      if (chunk < row.chunks) orders[i] = row.orders[uint64_t{chunk} * gpu::kWarpThreads + gpu::lane_index()];
    }
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) {
      const uint32_t chunk = first + i * warps;
      if (chunk >= row.chunks) break;
      const uint32_t position = chunk * kSelectChunk + gpu::lane_index() * 4;
      const uint32_t of_lane[4] = {orders[i].x, orders[i].y, orders[i].z, orders[i].w};
      uint64_t entries[4];
      bool are_there[4];
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        entries[j] = entry_of(of_lane[j], position + j);
        are_there[j] = position + j < row.positions;
      }
      visit(chunk, entries, are_there);
    }
  }
}

/// In which digit, the highest first, the entry at `place` lies. All threads.
__device__ __forceinline__ void find_count_digit(SelectSpace& space, uint32_t place) {
  const unsigned warps = gpu::block_threads() / gpu::kWarpThreads;
  const unsigned lane = gpu::lane_index();
  for (unsigned group = gpu::warp_index(); group < kCountGroups; group += warps) {
    uint32_t sum = space.counts[group * kOfGroup + lane] + space.counts[group * kOfGroup + gpu::kWarpThreads + lane];
#pragma unroll
    for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2)
      sum += gpu::shuffle_xor(sum, apart);
    if (lane == 0) space.groups[group] = sum;
  }
  gpu::block_barrier();  // sums of groups are there
  if (gpu::warp_index() == 0) {
    const uint32_t of_group = space.groups[kCountGroups - 1 - lane];
    const uint32_t up_to_group = count_so_far(of_group);
    const unsigned at = gpu::lowest_bit(gpu::ballot(up_to_group > place));
    const uint32_t before = gpu::shuffle(up_to_group - of_group, at);
    const unsigned highest = (kCountGroups - at) * kOfGroup - 1 - lane * 2;
    const uint32_t two[2] = {space.counts[highest], space.counts[highest - 1]};
    const uint32_t up_to_two = before + count_so_far(two[0] + two[1]);
    const uint32_t up_to_first = up_to_two - two[1];
    if (up_to_two > place && up_to_two - two[0] - two[1] <= place) {  // one lane
      const bool is_first = up_to_first > place;
      space.digit = is_first ? highest : highest - 1;
      space.place = place - (is_first ? up_to_first - two[0] : up_to_first);
      space.entries = is_first ? two[0] : two[1];
    }
  }
  gpu::block_barrier();  // the digit is known
}
static_assert(kOfGroup == 2 * gpu::kWarpThreads && kCountGroups == gpu::kWarpThreads);

/// Flags entries above the digit that was found first, and lists those that have it.
__device__ __forceinline__ void list_entries(const SelectRow& row, SelectSpace& space, uint64_t digit, unsigned shift) {
  if (gpu::thread_index() == 0) space.listed = 0;
  gpu::block_barrier();  // the list is empty
  const unsigned lower_lanes = (1U << gpu::lane_index()) - 1;
  for_each_chunk(row, [&](uint32_t chunk, const uint64_t(&entries)[4], const bool(&are_there)[4]) {
    unsigned above[4];
    unsigned listed[4];
    uint32_t count = 0;
    uint32_t before = 0;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      above[j] = gpu::ballot(are_there[j] && entries[j] >> shift > digit);
      listed[j] = gpu::ballot(are_there[j] && entries[j] >> shift == digit);
      count += gpu::count_bits(listed[j]);
      before += gpu::count_bits(listed[j] & lower_lanes);
    }
    if (gpu::lane_index() == 0) row.flags[chunk] = make_uint4(above[0], above[1], above[2], above[3]);
    if (count == 0) return;
    uint32_t first = 0;
    if (gpu::lane_index() == 0) first = gpu::add_together(&space.listed, count);
    uint32_t at = gpu::shuffle(first, 0) + before;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      if ((listed[j] >> gpu::lane_index() & 1U) != 0) space.list[at++] = entries[j];
    }
  });
  gpu::block_barrier();  // the list is complete
}

/// The least entry that is chosen, with zeros for bits that make no difference. `is_listed`: whether entries above it
/// that are not in the list have their flags.
__device__ __forceinline__ uint64_t find_least(const SelectRow& row, uint32_t most, SelectSpace& space,
                                               bool& is_listed) {
  uint64_t least = 0;
  uint32_t place = most - 1;
  is_listed = false;
  for (unsigned shift = 64; shift > 0;) {
    const unsigned bits = shift == 42 || shift == 10 ? 10 : kMostDigitBits;  // 11 + 11 + 10 of the order, and again
    const unsigned next = shift - bits;
    const uint64_t known = shift == 64 ? 0 : least >> shift;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    for (uint32_t i = gpu::thread_index(); i < kCounts; i += gpu::block_threads())
      space.counts[i] = 0;
    gpu::block_barrier();  // the counts are zero
    const auto count = [&](uint64_t entry, bool is_there) {
      const bool agrees = is_there && (shift == 64 || entry >> shift == known);
      if (agrees) gpu::add_together(space.counts + (entry >> next & mask), 1);
    };
    if (is_listed) {
      for (uint32_t i = gpu::thread_index(); i < space.listed; i += gpu::block_threads())
        count(space.list[i], true);
    } else {
      for_each_chunk(row, [&](uint32_t /*chunk*/, const uint64_t(&entries)[4], const bool(&are_there)[4]) {
#pragma unroll
        for (unsigned j = 0; j < 4; ++j)
          count(entries[j], are_there[j]);
      });
    }
    gpu::block_barrier();  // the counts are complete
    find_count_digit(space, place);
    least |= uint64_t{space.digit} << next;
    place = space.place;
    shift = next;
    if (space.entries == place + 1) break;  // all of them are chosen
    if (!is_listed && space.entries <= kListed) {
      list_entries(row, space, least >> shift, shift);
      is_listed = true;
    }
  }
  return least;
}

/// Flags what is chosen and has no flag yet. A barrier must follow.
__device__ __forceinline__ void flag_chosen(const SelectRow& row, const SelectSpace& space, uint64_t least,
                                            bool is_listed) {
  if (is_listed) {
    auto* words = reinterpret_cast<uint32_t*>(row.flags);
    for (uint32_t i = gpu::thread_index(); i < space.listed; i += gpu::block_threads()) {
      if (space.list[i] < least) continue;
      const uint32_t position = position_of(space.list[i]);
      gpu::set_together(words + position / kSelectChunk * 4 + position % 4, 1U << position % kSelectChunk / 4);
    }
    return;
  }
  for_each_chunk(row, [&](uint32_t chunk, const uint64_t(&entries)[4], const bool(&are_there)[4]) {
    unsigned chosen[4];
#pragma unroll
    for (unsigned j = 0; j < 4; ++j)
      chosen[j] = gpu::ballot(are_there[j] && entries[j] >= least);
    if (gpu::lane_index() == 0) row.flags[chunk] = make_uint4(chosen[0], chosen[1], chosen[2], chosen[3]);
  });
}

/// The positions that have flags, ascending.
__device__ __forceinline__ void list_ids(const SelectRow& row, SelectSpace& space, uint32_t* ids) {
  const uint32_t warps = gpu::block_threads() / gpu::kWarpThreads;
  const uint32_t of_warp = (row.chunks + warps - 1) / warps;
  const uint32_t begin = gpu::warp_index() * of_warp;
  const uint32_t behind = begin + of_warp < row.chunks ? begin + of_warp : row.chunks;
  const auto count_of = [](const uint4& flags) {
    return gpu::count_bits(flags.x) + gpu::count_bits(flags.y) + gpu::count_bits(flags.z) + gpu::count_bits(flags.w);
  };
  uint32_t sum = 0;
  for (uint32_t chunk = begin + gpu::lane_index(); chunk < behind; chunk += gpu::kWarpThreads)
    sum += count_of(row.flags[chunk]);
#pragma unroll
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2)
    sum += gpu::shuffle_xor(sum, apart);
  if (gpu::lane_index() == 0) space.of_warps[gpu::warp_index()] = sum;
  gpu::block_barrier();  // the warps' sums are there
  uint32_t at = 0;
  for (unsigned warp = 0; warp < gpu::warp_index(); ++warp)
    at += space.of_warps[warp];
  const unsigned lower_lanes = (1U << gpu::lane_index()) - 1;
#pragma unroll 2
  for (uint32_t chunk = begin; chunk < behind; ++chunk) {
    const uint4 flags = row.flags[chunk];
    const unsigned words[4] = {flags.x, flags.y, flags.z, flags.w};
    uint32_t to = at;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j)
      to += gpu::count_bits(words[j] & lower_lanes);
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      if ((words[j] >> gpu::lane_index() & 1U) != 0) ids[to++] = chunk * kSelectChunk + gpu::lane_index() * 4 + j;
    }
    at += count_of(flags);
  }
}

__global__ void __launch_bounds__(kMostSelectWarps* gpu::kWarpThreads, 1) select_kernel(device::ChooseRun run) {
  const uint32_t at = gpu::block_index().x;
  const uint32_t positions = device::positions_seen(run, at);
  uint32_t* ids = run.ids + uint64_t{at} * run.most;
  if (gpu::thread_index() == 0) run.counts[at] = positions < run.most ? positions : run.most;
  if (positions <= run.most) {
    for (uint32_t i = gpu::thread_index(); i < positions; i += gpu::block_threads())
      ids[i] = i;
    return;
  }
  auto& space = *gpu::shared_memory<SelectSpace>();
  const uint64_t first = uint64_t{at} * run.order_stride;
  const SelectRow row = {.orders = reinterpret_cast<const uint4*>(run.orders + first),
                         .flags = reinterpret_cast<uint4*>(run.flags + first / 32),
                         .positions = positions,
                         .chunks = (positions - 1) / kSelectChunk + 1};
  bool is_listed = false;
  const uint64_t least = find_least(row, run.most, space, is_listed);
  flag_chosen(row, space, least, is_listed);
  gpu::block_barrier();  // all flags are there
  list_ids(row, space, ids);
}

uint32_t tiles_of(uint32_t position_limit) {
  return static_cast<uint32_t>(ceil_div(std::max(position_limit, 1U), kScorePositions));
}

}  // namespace

ChooseRuns choose_runs(uint32_t rows, uint32_t position_limit) {
  ChooseRuns runs;
  const uint64_t stride = round_up(std::max(position_limit, 1U), kSelectChunk);
  const uint64_t row_bytes = stride * sizeof(uint32_t) + stride / 8;
  runs.order_stride = static_cast<uint32_t>(stride);
  runs.rows_a_run = static_cast<uint32_t>(std::clamp<uint64_t>(kOrderBytes / row_bytes, 1, std::max(rows, 1U)));
  runs.scratch_bytes = std::max(row_bytes, std::min(row_bytes * rows, kOrderBytes));
  return runs;
}

uint32_t score_rows_of_block(uint32_t rows, uint32_t position_limit) {
  const uint64_t blocks = uint64_t{std::min(tiles_of(position_limit), kMostScoreBlocks)} * rows;
  return static_cast<uint32_t>(std::clamp<uint64_t>(blocks / kWantedScoreBlocks, 1, kMostRowsOfBlock));
}

gpu::LaunchShape choose_scores_launch(const ChooseTask& task, uint32_t rows) {
  const uint32_t heads = task.heads > kScoreHeads / 2 ? kScoreHeads : kScoreHeads / 2;
  const uint64_t floats = uint64_t{kScorePositions} * score_key_stride(task.keys.in) + heads * kScoreQueryStride;
  return {.grid_x = std::min(tiles_of(task.position_limit), kMostScoreBlocks),
          .grid_y = static_cast<unsigned>(ceil_div(rows, score_rows_of_block(rows, task.position_limit))),
          .threads = kScoreThreads,
          .shared_bytes = static_cast<unsigned>(floats * sizeof(float))};
}

gpu::LaunchShape choose_select_launch(uint32_t rows, uint32_t position_limit) {
  constexpr unsigned kChunksOfWarp = 4;
  const auto warps = static_cast<unsigned>(
      std::clamp<uint64_t>(ceil_div(position_limit, kSelectChunk * kChunksOfWarp), 1, kMostSelectWarps));
  return {.grid_x = rows, .threads = warps * gpu::kWarpThreads, .shared_bytes = sizeof(SelectSpace)};
}

void run_select(gpu::Stream& stream, const device::ChooseRun& run, uint32_t position_limit) {
  gpu::launch(stream, choose_select_launch(run.rows, position_limit), select_kernel, run);
}

void run_choose(gpu::Stream& stream, const ChooseTask& task) {
  const ChooseRuns runs = choose_runs(task.rows, task.position_limit);
  for (uint32_t row = 0; row < task.rows; row += runs.rows_a_run) {
    const uint32_t rows = std::min(runs.rows_a_run, task.rows - row);
    const uint64_t heads = uint64_t{row} * task.heads;
    auto* orders = reinterpret_cast<uint32_t*>(task.scratch);
    const device::ChooseRun run{.queries = task.queries + heads * task.keys.in,
                                .weights = task.weights + heads,
                                .keys = task.keys,
                                .ids = task.ids + uint64_t{row} * task.most,
                                .counts = task.counts + row,
                                .orders = orders,
                                .flags = orders + uint64_t{rows} * runs.order_stride,
                                .live = task.live,
                                .most = task.most,
                                .rows = rows,
                                .heads = task.heads,
                                .first_position = task.first_position + row,
                                .order_stride = runs.order_stride,
                                .key_stride = score_key_stride(task.keys.in),
                                .rows_of_block = score_rows_of_block(rows, task.position_limit)};
    if (task.position_limit > task.most) run_scores(stream, task, run);
    run_select(stream, run, task.position_limit);
  }
}

}  // namespace dspack::kernels::cuda
