// Safetensors files that are put together again from the tensors of a packed repository: its source shards, byte for
// byte, or others.
// Threads: ShardImage is a plain value; rebuild() may run for several images at once, each with its own reader.
// Lifetime: images refer to the catalogue by index; keep both together.
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

}  // namespace dspack::reshard
