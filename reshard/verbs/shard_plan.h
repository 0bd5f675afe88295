// The plan of ordinary Hugging Face shards: which tensor of a checkpoint goes into which file. Pure, no I/O.
// Threads: thread-safe (pure functions). Deterministic: catalogue and size alone decide.
#pragma once

#include <string>
#include <vector>

#include "reshard/verbs/rebuild.h"

namespace dspack::reshard {

/// Catalogue indices in natural order: token embedding; layers ascending, in each what every token needs and then its
/// experts ascending; final norm and head; all others. By name where that leaves a choice.
[[nodiscard]] std::vector<uint32_t> natural_order(const format::Checkpoint& catalogue);

/// Shards of at most `shard_bytes` of tensors each (a larger tensor gets one of its own), filled in natural order:
/// model-00001-of-000NN.safetensors, or one model.safetensors. Within a shard larger elements come first, as the
/// official writer has it, so that every tensor is aligned to its element.
/// Tensors that were packed in slices become whole again; they stand where the first of their slices would.
[[nodiscard]] std::vector<ShardImage> plan_shards(const format::Checkpoint& catalogue, uint64_t shard_bytes,
                                                  const std::vector<WholeTensor>& whole = {});

/// The index of such shards, whose tensors have `payload_bytes` in all; of more than one.
[[nodiscard]] std::string shard_index(const std::vector<ShardImage>& shards, uint64_t payload_bytes);

}  // namespace dspack::reshard
