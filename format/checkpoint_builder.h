// Fills a Checkpoint and checks its rules: names are unique, sizes fit a disk, experts are found by key. Only code that
// makes catalogues uses it; all other code uses Checkpoint.
// Threads: single-thread. Lifetime: owns what is added, until finish. Errors: invalid (contradictory headers, indexes
// and manifests), naming the file and the tensor.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "format/fused_experts.h"
#include "format/index.h"
#include "format/manifest.h"
#include "format/safetensors.h"

namespace dspack::format {

/// A sentence for people about tensors that seem to be experts' but match no known name family: their number and name
/// patterns, as `12 tensors speak of experts and have names of no known family: "a.N.experts.w1" (such as
/// "a.0.experts.w1")`. nullopt: there are none. Tensors that look like fused experts are left to FusedExperts.
[[nodiscard]] std::optional<std::string> unknown_experts(std::span<const TensorEntry> tensors);

/// Matrices within a tensor of an expert: gate followed by up in "gate_up_proj" [2n, d], next to "down_proj" [d, n].
/// They and their scales have the names of models that store each as a tensor ("gate_proj.weight",
/// "gate_proj.weight_scale_inv", ...): parts of the bytes of `expert`, which holds all tensors of one expert. A scale
/// of the whole tensor applies to both matrices. Empty: the expert has no such tensors, or they are transposed, as
/// Llama-4's [d, 2n] and gpt-oss' are. Source: Mistral-Small-4's weights in the names of Hugging Face transformers,
/// whose experts take gate and up with chunk(2).
[[nodiscard]] std::vector<TensorEntry> projections_within(std::span<const TensorEntry* const> expert);

/// A file of an ordinary checkpoint with its header read.
struct Shard {
  CheckpointFile file;
  SafetensorsHeader header;
};

class CheckpointBuilder {
 public:
  /// Reserves memory for `tensors` tensors.
  void expect(size_t tensors);
  /// Adds a file of an ordinary checkpoint; fused tensors are added as slices.
  Result<void> add_shard(Shard shard, const FusedExperts& fused);
  /// Adds all files and aliases of a packed repository.
  Result<void> set_manifest(Manifest manifest);
  /// Adds a tensor that is in no file.
  Result<void> add_made(TensorEntry entry);
  /// Adds files and their tensors from other catalogues; TensorEntry::file is an index into `files`. `manifest`
  /// describes the whole; its files, if it has any, are the first of `files`.
  Result<void> add_known(std::vector<CheckpointFile> files, std::vector<TensorEntry> tensors, Manifest manifest);
  /// Checks that the shards hold what the index promises.
  Result<void> check_index(const Index& index);
  /// Adds a sentence for people about the files.
  void warn(std::string warning);
  void doubt_experts(std::optional<std::string> doubt);

  [[nodiscard]] std::span<const TensorEntry> tensors() const { return checkpoint_.tensors_; }
  Checkpoint finish();

 private:
  void find_matrices_within();
  Result<void> add_packed(const PackedFile& packed, const Layout& layout);
  /// Checks that a file lists exactly the experts that it holds: otherwise their digests would prove nothing about
  /// them.
  static Result<void> check_experts(const PackedFile& packed, std::span<const TensorEntry> tensors);
  Result<void> add_alias(const std::string& name, const std::string& target);
  Result<void> count(uint64_t size_bytes, const std::string& path);
  /// Adds a tensor, or a slice of one, of the shard that is being added.
  Result<void> add_stored(TensorInfo tensor, const Shard& shard);
  Result<void> add(TensorEntry entry, const std::string& path);

  Checkpoint checkpoint_;
  uint64_t total_bytes_ = 0;
};

}  // namespace dspack::format
