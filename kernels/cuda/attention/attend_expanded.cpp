#include "kernels/cuda/attention/attend_expanded.h"

#include <algorithm>

#include "format/base/size.h"
#include "kernels/cuda/tokens/rounded_rows.h"

namespace dspack::kernels::cuda {
namespace {

constexpr uint64_t kKeysBytes = 96ULL << 20;  // keys and values in BF16, unless one head needs more
constexpr uint64_t kMadeBytes = 16ULL << 20;  // kv_b's result before rounding, in FP32
constexpr uint64_t kAlignment = 256;

uint64_t keys_bytes(const ExpandedShape& shape) {
  const uint64_t head = uint64_t{shape.positions} * shape.head_dim() * sizeof(uint16_t);
  return std::min(head * shape.heads, std::max(head, kKeysBytes));
}

}  // namespace

ExpandedScratch lay_out_expanded(std::byte* memory, const ExpandedShape& shape) {
  ExpandedScratch scratch;
  const auto add = [&]<class T>(T*& place, uint64_t bytes) {
    place = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + scratch.size_bytes);
    scratch.size_bytes += round_up(bytes, kAlignment);
  };
  const uint64_t most_slice =
      std::max<uint64_t>(round_up(shape.positions, kExpandedTilePositions), kExpandedTilePositions);
  const uint64_t made_row = uint64_t{shape.head_dim()} * sizeof(float);  // bytes per position and head
  const uint64_t slice =
      std::min(most_slice, std::max<uint64_t>(kMadeBytes / std::max<uint64_t>(made_row, 1), kExpandedTilePositions));
  add(scratch.latents, rounded_bytes(slice, shape.latent_dim));
  add(scratch.made, std::min(made_row * shape.heads * most_slice,
                             std::max(kMadeBytes, made_row * shape.heads * kExpandedTilePositions)));
  add(scratch.keys, keys_bytes(shape));
  add(scratch.ropes, uint64_t{shape.positions} * shape.rope_dim * sizeof(uint16_t));
  return scratch;
}

bool pays_to_expand(const ExpandedShape& shape) {
  // Multiply-adds of one head: per query and position, and per row or position with the head's part of kv_b.
  const uint64_t absorbed = 2 * uint64_t{shape.latent_dim} + shape.rope_dim;
  const uint64_t expanded = uint64_t{shape.nope_dim} + shape.rope_dim + shape.value_dim;
  const uint64_t of_kv_b = uint64_t{shape.latent_dim} * shape.head_dim();
  const double pairs = static_cast<double>(shape.rows) * (shape.positions - shape.rows / 2.0);
  return shape.rows >= kExpandedTileQueries &&
         pairs * static_cast<double>(absorbed) + shape.rows * static_cast<double>(of_kv_b) >
             pairs * static_cast<double>(expanded) + shape.positions * static_cast<double>(of_kv_b);
}

ExpandedPlan plan_expanded(const ExpandedShape& shape) {
  const uint64_t head = uint64_t{shape.positions} * shape.head_dim() * sizeof(uint16_t);
  ExpandedPlan plan;
  plan.heads =
      static_cast<uint32_t>(std::clamp<uint64_t>(keys_bytes(shape) / std::max<uint64_t>(head, 1), 1, shape.heads));
  const uint64_t made_row = uint64_t{plan.heads} * shape.head_dim() * sizeof(float);
  const uint64_t slice = kMadeBytes / made_row / kExpandedTilePositions * kExpandedTilePositions;
  plan.slice = static_cast<uint32_t>(std::max<uint64_t>(
      std::min<uint64_t>(slice, round_up(shape.positions, kExpandedTilePositions)), kExpandedTilePositions));
  return plan;
}

uint64_t expanded_scratch_bytes(const ExpandedShape& shape) {
  return lay_out_expanded(nullptr, shape).size_bytes;
}

}  // namespace dspack::kernels::cuda
