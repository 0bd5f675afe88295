// Both kernels' calls for a run of rows, and the second kernel, which divides a row's positions into parts, one per
// block.
//
// Entries, one per position, have a strict order: the score's order, then the lower position. So there is a unique
// least chosen entry. Its bits are found from the top, by digits of eleven or ten bits, by counting the entries that
// agree with it so far. The scores' kernel has counted the first digit:
//
//   every block      first digit; for its part: flags of the entries above it, and a list of those that have it
//   the row's last   the other digits, from the list; flags of the list's chosen entries; ids of all flags, ascending
//
// If the list would be too long the last block counts the other digits over all entries. It resets the counters to
// zero. Flags are stored as a warp computes them: in a chunk of 128 positions, bit l of word i is position 4 l + i.
#include "kernels/cuda/sparse/choose.h"

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/sparse/choose.cuh"

namespace dspack::kernels::cuda {
namespace {

constexpr uint32_t kChunksOfPart = 32;
constexpr uint32_t kMaxParts = 32;          // per row
constexpr uint32_t kMaxSelectBlocks = 128;  // over all rows of a run
constexpr unsigned kSelectWarps = 16;

constexpr uint32_t kCountGroups = 32;
constexpr uint32_t kOfGroup = kFirstCounts / kCountGroups;
constexpr unsigned kFirstShift = 64 - kFirstDigitBits;  // position of the first digit in an entry

/// Shared memory of a block.
struct SelectSpace {
  uint64_t list[kMaxListed];  // entries
  uint32_t counts[kFirstCounts];
  uint32_t groups[kCountGroups];    // sums of counts
  uint32_t of_warps[kSelectWarps];  // flags per warp
  uint32_t listed;
  uint32_t first;    // offset of the part's list in the row's
  uint32_t is_last;  // whether the row's other blocks have ended
  uint32_t digit;    // result of find_digit_at
  uint32_t place;    // rank within the digit's entries, from the largest
  uint32_t entries;  // number of entries with the digit
};

/// The row of a block.
struct SelectRow {
  const uint4* orders;  // [chunks, 32 lanes]
  uint4* flags;         // [chunks]
  uint64_t* list;       // [kMaxListed]
  ChooseCounters* counters;
  uint32_t positions;
  uint32_t chunks;
};

__device__ __forceinline__ uint64_t entry_of(uint32_t order, uint32_t position) {
  return uint64_t{order} << 32U | (0xffffffffU - position);
}
__device__ __forceinline__ uint32_t position_of(uint64_t entry) {
  return 0xffffffffU - static_cast<uint32_t>(entry);
}

/// Inclusive prefix sum over lanes.
__device__ __forceinline__ uint32_t count_so_far(uint32_t value) {
#pragma unroll
  for (unsigned apart = 1; apart < gpu::kWarpThreads; apart *= 2) {
    const uint32_t other = gpu::shuffle(value, gpu::lane_index() - apart);
    if (gpu::lane_index() >= apart) value += other;
  }
  return value;
}

/// Calls visit(chunk, orders, there) for chunks [begin, end), which the warps take in turn: four orders per lane, the
/// first `there` of which belong to positions that the row sees.
template <class Visit>
__device__ __forceinline__ void for_each_chunk(const SelectRow& row, uint32_t begin, uint32_t end, Visit visit) {
  constexpr unsigned kAhead = 4;  // loads in flight before the first is used
  for (uint32_t first = begin + gpu::warp_index(); first < end; first += kAhead * kSelectWarps) {
    uint4 loaded[kAhead];
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) {
      const uint32_t chunk = first + i * kSelectWarps;
      if (chunk < end) loaded[i] = row.orders[uint64_t{chunk} * gpu::kWarpThreads + gpu::lane_index()];
    }
#pragma unroll
    for (unsigned i = 0; i < kAhead; ++i) {
      const uint32_t chunk = first + i * kSelectWarps;
      if (chunk >= end) break;
      const uint32_t position = chunk * kSelectChunk + gpu::lane_index() * 4;
      const uint32_t left = row.positions > position ? row.positions - position : 0;
      const uint32_t orders[4] = {loaded[i].x, loaded[i].y, loaded[i].z, loaded[i].w};
      visit(chunk, orders, left);
    }
  }
}

/// Finds the digit, from the highest, that contains the entry at `place`. Call with all threads.
__device__ __forceinline__ void find_digit_at(SelectSpace& space, uint32_t place) {
  const unsigned lane = gpu::lane_index();
  for (unsigned group = gpu::warp_index(); group < kCountGroups; group += kSelectWarps) {
    uint32_t sum = space.counts[group * kOfGroup + lane] + space.counts[group * kOfGroup + gpu::kWarpThreads + lane];
#pragma unroll
    for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2)
      sum += gpu::shuffle_xor(sum, apart);
    if (lane == 0) space.groups[group] = sum;
  }
  gpu::block_barrier();  // sums of groups are stored
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
  gpu::block_barrier();  // the digit is stored
}
static_assert(kOfGroup == 2 * gpu::kWarpThreads && kCountGroups == gpu::kWarpThreads);

/// Flags the entries of chunks [begin, end) whose first digit is at least `least`, and lists those whose digit is
/// `listed`, unordered.
__device__ __forceinline__ void flag_and_list(const SelectRow& row, uint32_t begin, uint32_t end, uint32_t least,
                                              uint32_t listed, SelectSpace& space) {
  for_each_chunk(row, begin, end, [&](uint32_t chunk, const uint32_t(&orders)[4], uint32_t there) {
    unsigned flags[4];
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      const uint32_t digit = orders[j] >> (32 - kFirstDigitBits);
      flags[j] = gpu::ballot(j < there && digit >= least);
      if (j < there && digit == listed) {
        const uint32_t at = gpu::add_together(&space.listed, 1);
        space.list[at] = entry_of(orders[j], chunk * kSelectChunk + gpu::lane_index() * 4 + j);
      }
    }
    if (gpu::lane_index() == 0) row.flags[chunk] = make_uint4(flags[0], flags[1], flags[2], flags[3]);
  });
}

/// The first digit of the row's least chosen entry, from the counts of the scores' kernel.
__device__ __forceinline__ void find_first_digit(const SelectRow& row, uint32_t most, SelectSpace& space) {
  for (uint32_t i = gpu::thread_index(); i < kFirstCounts; i += gpu::block_threads())
    space.counts[i] = row.counters->of_digit[i];
  if (gpu::thread_index() == 0) space.listed = 0;
  gpu::block_barrier();  // the counts are loaded and the list is empty
  find_digit_at(space, most - 1);
}

/// Appends a part's list to the row's, and finds whether this block is the row's last.
__device__ __forceinline__ void hand_over(const SelectRow& row, SelectSpace& space) {
  gpu::block_barrier();  // the list is complete
  if (gpu::thread_index() == 0 && space.listed > 0)
    space.first = gpu::add_together(&row.counters->listed, space.listed);
  gpu::block_barrier();  // its offset is known
  for (uint32_t i = gpu::thread_index(); i < space.listed; i += gpu::block_threads())
    row.list[space.first + i] = space.list[i];
  gpu::block_barrier();  // flags and list are written
  if (gpu::thread_index() == 0) space.is_last = gpu::count_up(&row.counters->parts) == gpu::grid_blocks().x - 1 ? 1 : 0;
  gpu::block_barrier();  // is_last is stored
}

/// The least chosen entry, with zeros for bits that make no difference. Finds the digits after the first from the
/// entries in shared memory, or from all entries of the row if there are too many.
__device__ __forceinline__ uint64_t find_least(const SelectRow& row, SelectSpace& space) {
  uint64_t least = uint64_t{space.digit} << kFirstShift;
  uint32_t place = space.place;
  const bool is_listed = space.entries <= kMaxListed;
  const uint32_t listed = space.entries;
  for (unsigned shift = kFirstShift; shift > 0;) {
    const unsigned bits = shift == 42 || shift == 10 ? 10 : kFirstDigitBits;  // 11 + 11 + 10 bits, twice
    const unsigned next = shift - bits;
    const uint64_t known = least >> shift;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    gpu::block_barrier();  // the results have been read
    for (uint32_t i = gpu::thread_index(); i < kFirstCounts; i += gpu::block_threads())
      space.counts[i] = 0;
    gpu::block_barrier();  // the counts are zero
    const auto count = [&](uint64_t entry) {
      if (entry >> shift == known) gpu::add_together(space.counts + (entry >> next & mask), 1);
    };
    if (is_listed) {
      for (uint32_t i = gpu::thread_index(); i < listed; i += gpu::block_threads())
        count(space.list[i]);
    } else {
      for_each_chunk(row, 0, row.chunks, [&](uint32_t chunk, const uint32_t(&orders)[4], uint32_t there) {
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) {
          if (j < there) count(entry_of(orders[j], chunk * kSelectChunk + gpu::lane_index() * 4 + j));
        }
      });
    }
    gpu::block_barrier();  // the counts are complete
    find_digit_at(space, place);
    least |= uint64_t{space.digit} << next;
    place = space.place;
    shift = next;
    if (space.entries == place + 1) break;  // all of these are chosen
  }
  return least;
}

/// Flags the chosen entries of the list, or of all entries if there is no list. A barrier must follow.
__device__ __forceinline__ void flag_chosen(const SelectRow& row, const SelectSpace& space, uint64_t least,
                                            uint32_t listed) {
  if (listed <= kMaxListed) {
    auto* words = reinterpret_cast<uint32_t*>(row.flags);
    for (uint32_t i = gpu::thread_index(); i < listed; i += gpu::block_threads()) {
      if (space.list[i] < least) continue;
      const uint32_t position = position_of(space.list[i]);
      gpu::set_together(words + position / kSelectChunk * 4 + position % 4, 1U << position % kSelectChunk / 4);
    }
    return;
  }
  for_each_chunk(row, 0, row.chunks, [&](uint32_t chunk, const uint32_t(&orders)[4], uint32_t there) {
    unsigned chosen[4];
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      const uint64_t entry = entry_of(orders[j], chunk * kSelectChunk + gpu::lane_index() * 4 + j);
      chosen[j] = gpu::ballot(j < there && entry >= least);
    }
    if (gpu::lane_index() == 0) row.flags[chunk] = make_uint4(chosen[0], chosen[1], chosen[2], chosen[3]);
  });
}

__device__ __forceinline__ uint32_t count_flags(const uint4& flags) {
  return gpu::popc(flags.x) + gpu::popc(flags.y) + gpu::popc(flags.z) + gpu::popc(flags.w);
}

/// Lists the flagged positions, ascending.
__device__ __forceinline__ void list_ids(const SelectRow& row, SelectSpace& space, uint32_t* ids) {
  const uint32_t of_warp = (row.chunks + kSelectWarps - 1) / kSelectWarps;
  const uint32_t begin = gpu::warp_index() * of_warp;
  const uint32_t behind = begin + of_warp < row.chunks ? begin + of_warp : row.chunks;
  uint32_t sum = 0;
  for (uint32_t chunk = begin + gpu::lane_index(); chunk < behind; chunk += gpu::kWarpThreads)
    sum += count_flags(row.flags[chunk]);
#pragma unroll
  for (unsigned apart = gpu::kWarpThreads / 2; apart > 0; apart /= 2)
    sum += gpu::shuffle_xor(sum, apart);
  if (gpu::lane_index() == 0) space.of_warps[gpu::warp_index()] = sum;
  gpu::block_barrier();  // the warps' sums are stored
  uint32_t at = 0;
  for (unsigned warp = 0; warp < gpu::warp_index(); ++warp)
    at += space.of_warps[warp];
  const unsigned lower_lanes = (1U << gpu::lane_index()) - 1;
#pragma unroll 4
  for (uint32_t chunk = begin; chunk < behind; ++chunk) {
    const uint4 flags = row.flags[chunk];
    const unsigned words[4] = {flags.x, flags.y, flags.z, flags.w};
    uint32_t to = at;
#pragma unroll
    for (unsigned j = 0; j < 4; ++j)
      to += gpu::popc(words[j] & lower_lanes);
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      if ((words[j] >> gpu::lane_index() & 1U) != 0) ids[to++] = chunk * kSelectChunk + gpu::lane_index() * 4 + j;
    }
    at += count_flags(flags);
  }
}

/// Resets the counters for the next call.
__device__ __forceinline__ void clear(ChooseCounters& counters) {
  for (uint32_t i = gpu::thread_index(); i < kFirstCounts; i += gpu::block_threads())
    counters.of_digit[i] = 0;
  if (gpu::thread_index() == 0) counters.listed = counters.parts = 0;
}

__global__ void __launch_bounds__(kSelectWarps* gpu::kWarpThreads) select_kernel(device::ChooseRun run) {
  const uint32_t part = gpu::block_index().x;
  const uint32_t at = gpu::block_index().y;
  const uint32_t positions = device::keys_seen(run, at);
  uint32_t* ids = run.ids + uint64_t{at} * run.most;
  if (part == 0 && gpu::thread_index() == 0) run.counts[at] = positions < run.most ? positions : run.most;
  if (positions <= run.most) {
    for (uint32_t i = part * gpu::block_threads() + gpu::thread_index(); i < positions;
         i += gpu::grid_blocks().x * gpu::block_threads())
      ids[i] = i;
    return;
  }
  auto& space = *gpu::shared_memory<SelectSpace>();
  const uint64_t first = uint64_t{at} * run.order_stride;
  const SelectRow row = {.orders = reinterpret_cast<const uint4*>(run.orders + first),
                         .flags = reinterpret_cast<uint4*>(run.flags + first / 32),
                         .list = run.lists + uint64_t{at} * kMaxListed,
                         .counters = run.counters + at,
                         .positions = positions,
                         .chunks = (positions - 1) / kSelectChunk + 1};
  find_first_digit(row, run.most, space);
  const uint32_t digit = space.digit;
  const uint32_t listed = space.entries;
  const bool are_all_chosen = listed == space.place + 1;  // all entries with the digit
  if (are_all_chosen || listed <= kMaxListed) {
    const uint32_t of_part = (row.chunks + gpu::grid_blocks().x - 1) / gpu::grid_blocks().x;
    const uint32_t begin = part * of_part;
    const uint32_t behind = begin + of_part < row.chunks ? begin + of_part : row.chunks;
    flag_and_list(row, begin, behind, are_all_chosen ? digit : digit + 1, are_all_chosen ? kFirstCounts : digit, space);
  }
  hand_over(row, space);
  if (space.is_last == 0) return;
  if (!are_all_chosen) {
    if (listed <= kMaxListed) {
      for (uint32_t i = gpu::thread_index(); i < listed; i += gpu::block_threads())
        space.list[i] = row.list[i];
    }
    flag_chosen(row, space, find_least(row, space), listed);
    gpu::block_barrier();  // all flags are set
  }
  list_ids(row, space, ids);
  clear(*row.counters);
}

}  // namespace

gpu::LaunchShape choose_select_launch(uint32_t rows, uint32_t position_limit) {
  // With many rows there are enough blocks without parts.
  const uint64_t parts = ceil_div(position_limit, kSelectChunk * kChunksOfPart);
  return {.grid_x = static_cast<unsigned>(
              std::clamp<uint64_t>(parts, 1, std::max(std::min(kMaxParts, kMaxSelectBlocks / rows), 1U))),
          .grid_y = rows,
          .threads = kSelectWarps * gpu::kWarpThreads,
          .shared_bytes = sizeof(SelectSpace)};
}

void run_select(gpu::Stream& stream, const device::ChooseRun& run, uint32_t position_limit) {
  gpu::launch(stream, choose_select_launch(run.rows, position_limit), select_kernel, run);
}

void run_choose(gpu::Stream& stream, const ChooseTask& task) {
  const ChooseRuns runs = choose_runs(task.rows, task.key_limit());
  for (uint32_t row = 0; row < task.rows; row += runs.rows_a_run) {
    const uint32_t rows = std::min(runs.rows_a_run, task.rows - row);
    const uint64_t heads = uint64_t{row} * task.heads;
    auto* lists = reinterpret_cast<uint64_t*>(task.scratch);
    auto* orders = reinterpret_cast<uint32_t*>(lists + uint64_t{rows} * kMaxListed);
    const device::ChooseRun run{.queries = task.queries + heads * task.keys.in,
                                .weights = task.weights + heads,
                                .keys = task.keys,
                                .ids = task.choice.ids + uint64_t{row} * task.choice.most,
                                .counts = task.choice.counts + row,
                                .orders = orders,
                                .flags = orders + uint64_t{rows} * runs.order_stride,
                                .lists = lists,
                                .counters = task.counters,
                                .live = task.live.value,
                                .most = task.choice.most,
                                .rows = rows,
                                .heads = task.heads,
                                .first_position = task.first_position + row,
                                .every = task.every,
                                .order_stride = runs.order_stride,
                                .key_stride = score_key_stride(task.keys.in),
                                .tensor_row_bytes = tensor_score_row_bytes(task.keys.in),
                                .rows_of_block = score_rows_of_block(rows, task.key_limit())};
    if (task.key_limit() > task.choice.most) {
      (task.on_tensor_cores ? run_scores_tensor : run_scores_exact)(stream, task, run);
    }
    run_select(stream, run, task.key_limit());
  }
}

}  // namespace dspack::kernels::cuda
