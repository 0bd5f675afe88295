// Safetensors files put together from the tensors of a packed repository: its source shards, byte for byte, or new
// Hugging Face shards of a given size.
// Threads: ShardImage is a plain value; rebuild() may run for several images at once, each with its own reader;
// plan_shards() is a pure function of catalogue and size. Lifetime: images refer to the catalogue by index; keep both
// together.
// Errors: invalid, corrupt (kept headers that do not fit the manifest), and as the repository.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "format/progress.h"
#include "reshard/run/tensor_reader.h"

namespace dspack::reshard {

/// A file as a sequence of known bytes (the header) and bytes of the packed repository (the tensors).
struct ShardImage {
  std::string path;
  std::string header;             // including the 8 bytes of its length
  std::vector<uint32_t> tensors;  // catalogue indices, in the order of the file
  uint64_t size_bytes = 0;
  std::optional<format::Digest> sha256;  // expected digest, if known
};

/// Whether the repository's source shards can be rebuilt at all. Errors: unsupported, naming the recipe that prevents
/// it; invalid (a manifest that contradicts itself).
[[nodiscard]] Result<void> check_rebuildable(const format::Repository& packed, const format::Manifest& manifest);

/// The shards that the repository was made from, in the manifest's order. Every packed tensor is in exactly one.
/// Errors: also those of check_rebuildable.
[[nodiscard]] Result<std::vector<ShardImage>> source_shards(format::Repository& packed,
                                                            const format::Checkpoint& catalogue,
                                                            const std::stop_token& stop);

/// A source tensor that was packed in slices, one per expert.
struct WholeTensor {
  format::TensorInfo info;       // `data` as in its source shard
  std::vector<uint32_t> slices;  // catalogue indices, in the order of their bytes
};

/// The repository's sliced tensors, according to the kept headers; none if the manifest does not require fused_experts.
/// Errors: invalid (only some of a tensor's slices are packed).
[[nodiscard]] Result<std::vector<WholeTensor>> whole_tensors(format::Repository& packed,
                                                             const format::Checkpoint& catalogue,
                                                             const std::stop_token& stop);

struct RebuiltShard {
  format::Digest sha256;             // digest of the whole file
  std::vector<std::string> damaged;  // one line per tensor that differs from its digest: "<file>: tensor ..."
};

/// Streams the whole file through `sink`, in order.
[[nodiscard]] Result<RebuiltShard> rebuild(const ShardImage& image, const format::Checkpoint& catalogue,
                                           TensorReader& reader, const format::ByteSink& sink,
                                           format::Progress& progress, const std::stop_token& stop);

/// Catalogue indices in natural order: token embedding; layers ascending, in each the tensors that every token needs
/// and then its experts ascending; final norm and head; all others. Ties are ordered by name.
[[nodiscard]] std::vector<uint32_t> natural_order(const format::Checkpoint& catalogue);

/// Shards with at most `shard_bytes` of tensors each (a larger tensor gets its own shard), filled in natural order:
/// model-00001-of-000NN.safetensors, or one model.safetensors. Within a shard larger elements come first, as in the
/// official writer, so that every tensor is aligned to its element. Sliced tensors become whole again, at the position
/// of their first slice.
[[nodiscard]] std::vector<ShardImage> plan_shards(const format::Checkpoint& catalogue, uint64_t shard_bytes,
                                                  const std::vector<WholeTensor>& whole = {});

/// The index of such shards if there are several. `payload_bytes`: total size of their tensors.
[[nodiscard]] std::string shard_index(const std::vector<ShardImage>& shards, uint64_t payload_bytes);

}  // namespace dspack::reshard
