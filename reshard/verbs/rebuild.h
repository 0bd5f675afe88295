// Safetensors files that are put together from the tensors of a packed repository: its source shards again, byte for
// byte, or ordinary Hugging Face shards of a size.
// Threads: ShardImage is a plain value; rebuild() may run for several images at once, each with its own reader; the
// plan of shards is a pure function, which catalogue and size alone decide. Lifetime: images refer to the catalogue by
// index; keep both together.
// Errors: invalid, corrupt (kept headers that do not fit the manifest), and as the repository.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/progress.h"
#include "reshard/run/tensor_reader.h"

namespace dspack::reshard {

/// A file as a sequence of bytes that are known (the header) and bytes of the packed repository (the tensors).
struct ShardImage {
  std::string path;
  std::string header;             // the 8 bytes of its length included
  std::vector<uint32_t> tensors;  // catalogue indices, in the order of the file
  uint64_t size_bytes = 0;
  std::optional<format::Digest> sha256;  // what it must be, where that is known
};

/// Whether its source's shards can be put together again at all. Errors: unsupported, with the recipe that is in the
/// way; invalid (a manifest that contradicts itself).
[[nodiscard]] Result<void> check_rebuildable(const format::Repository& packed, const format::Manifest& manifest);

/// The shards that the repository was made from, in the manifest's order. Every packed tensor is in exactly one.
/// Errors: those of check_rebuildable too.
[[nodiscard]] Result<std::vector<ShardImage>> source_shards(format::Repository& packed,
                                                            const format::Checkpoint& catalogue,
                                                            const std::stop_token& stop);

/// A tensor of the source that was packed in slices, one an expert.
struct WholeTensor {
  format::TensorInfo info;       // `data` as in its source shard
  std::vector<uint32_t> slices;  // catalogue indices, in the order of their bytes
};

/// Those of the repository, by the kept headers; none where the manifest requires no fused_experts. Errors: invalid
/// (some of a tensor's slices are here and others are not).
[[nodiscard]] Result<std::vector<WholeTensor>> whole_tensors(format::Repository& packed,
                                                             const format::Checkpoint& catalogue,
                                                             const std::stop_token& stop);

struct RebuiltShard {
  format::Digest sha256;             // of all that passed
  std::vector<std::string> damaged;  // one line a tensor that differs from its digest: "<file>: tensor ..."
};

/// Passes the whole file through `sink`, in order.
[[nodiscard]] Result<RebuiltShard> rebuild(const ShardImage& image, const format::Checkpoint& catalogue,
                                           TensorReader& reader, const format::ByteSink& sink,
                                           format::Progress& progress, const std::stop_token& stop);

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
