// Any repository, packed or ordinary, as one catalogue: from a tensor or an expert to file, offset, bytes, dtype,
// shape.
// Threads: immutable after opening, so thread-safe. Lifetime: owns its data; borrows nothing from the repository.
// Errors: not_found (no checkpoint there, a missing shard), invalid (contradictory index or header), corrupt, network.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "format/base/string_hash.h"
#include "format/digest.h"
#include "format/manifest.h"
#include "format/progress.h"
#include "format/safetensors.h"
#include "format/source/repository.h"
#include "format/tensor_name.h"

namespace dspack::format {

struct TensorEntry {
  std::string name;
  TensorName place;  // layer, expert, role
  Dtype dtype = Dtype::u8;
  std::vector<uint64_t> shape;
  uint32_t file = 0;             // index into Checkpoint::files
  ByteRange range;               // absolute in that file
  std::optional<Digest> digest;  // from the manifest of a packed repository, or learnt by an earlier reading
  bool is_alias = false;         // its bytes are stored once for it and another tensor, which is also listed
};

/// The remedy for lost data, as the end of an error's text.
inline constexpr std::string_view kFetchAgain = "; fetch it from where the repository is from";

/// One file that holds tensors.
struct CheckpointFile {
  std::string path;  // relative to the repository
  uint64_t size_bytes = 0;
  uint64_t data_start = 0;
  std::string version;                      // ByteSource::version when opened; empty for a packed repository
  std::optional<ContentDigest> declared{};  // ByteSource::declared when opened
  std::string header;                       // the first data_start bytes, unchanged; empty for a packed repository
};

/// Opens a file of a catalogue, if it has not changed since it was catalogued. A remote place is not asked before the
/// first read. Errors: those of Repository::open_known.
[[nodiscard]] Result<std::unique_ptr<ByteSource>> open_catalogued(Repository& repository, const CheckpointFile& file,
                                                                  std::stop_token stop);

/// A tensor that holds all routed experts of a layer: the catalogue lists its slices instead, one tensor per expert.
struct FusedTensor {
  std::string name;
  uint32_t file = 0;    // index into Checkpoint::files
  uint32_t first = 0;   // index into Checkpoint::tensors; the others follow
  uint32_t slices = 0;  // one per expert, from 0 on
};

/// Adjacent bytes of one file.
struct Extent {
  uint32_t file = 0;  // index into Checkpoint::files
  ByteRange range;    // absolute in that file
  auto operator<=>(const Extent&) const = default;
};

class Checkpoint {
 public:
  /// Reads the manifest of a packed repository, or the index and every shard's header (up to `jobs` at a time) of an
  /// ordinary one (model.safetensors.index.json, else a single model.safetensors; else Mistral's "consolidated" names
  /// of both). `progress` counts the headers; the caller calls finished(). nullptr: no reports.
  [[nodiscard]] static Result<Checkpoint> open(Repository& repository, unsigned jobs, const std::stop_token& stop,
                                               Progress* progress = nullptr);
  /// A catalogue of tensors that are not stored yet, as a recipe makes them. Their sizes are valid; files and offsets
  /// are not. Errors: invalid (two tensors of one name, sizes that no disk holds).
  [[nodiscard]] static Result<Checkpoint> of(std::vector<TensorEntry> tensors);

  [[nodiscard]] const std::vector<CheckpointFile>& files() const { return files_; }
  [[nodiscard]] const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// One of tensors(). nullptr: no such tensor.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
  /// As `find`; also finds a tensor of an MTP module by its layer name (place_modules), and a matrix or its scale
  /// within a tensor of an expert (projections_within), which is not one of tensors().
  [[nodiscard]] const TensorEntry* find_matrix(std::string_view name) const;
  /// The scale of a weight that `find` or `find_matrix` finds: the first of its possible names (scale_names) that
  /// exists. nullptr: there is none.
  [[nodiscard]] const TensorEntry* find_scale(std::string_view weight_name) const;
  /// Indices into tensors() of a routed expert's tensors, in ascending name order; empty if there is no such expert.
  [[nodiscard]] std::span<const uint32_t> expert(ExpertKey key) const;
  /// The bytes of a routed expert, in as few extents as possible, by file and offset. One extent if the expert has its
  /// own file; in a shared packed file two: its matrices, and its scales in the region after all matrices.
  [[nodiscard]] std::vector<Extent> expert_extents(ExpertKey key) const;
  [[nodiscard]] const std::map<ExpertKey, std::vector<uint32_t>>& experts() const { return experts_; }
  /// Set for a packed repository.
  [[nodiscard]] const std::optional<Manifest>& manifest() const { return manifest_; }
  /// Oddities that are not errors, for the user: tensors missing from the index, or from an expert, for example.
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }
  /// The warnings about experts that experts() may lack.
  [[nodiscard]] const std::vector<std::string>& expert_doubts() const { return expert_doubts_; }
  /// Tensors of an ordinary checkpoint that tensors() lists as slices.
  [[nodiscard]] const std::vector<FusedTensor>& fused() const { return fused_; }
  [[nodiscard]] uint64_t payload_bytes() const;
  /// Numbers MTP modules that are numbered apart ("mtp.layers.0.") as layers after the last of `layers` and makes their
  /// layer names known to find_matrix. Call before other threads read the catalogue.
  void place_modules(uint32_t layers);
  /// Sets the digest of a tensor, learnt elsewhere than from a manifest. Call before other threads read the catalogue.
  void learn_digest(uint32_t tensor, const Digest& digest) { tensors_[tensor].digest = digest; }

 private:
  friend class CheckpointBuilder;
  /// Adds warnings about parts that a whole model seems to lack.
  void warn_of_losses();
  std::vector<CheckpointFile> files_;
  std::vector<TensorEntry> tensors_;
  StringMap<uint32_t> by_name_;
  StringMap<uint32_t> as_layers_;       // layer names of modules that are numbered apart (place_modules)
  std::vector<TensorEntry> within_;     // matrices within tensors of experts
  StringMap<uint32_t> within_by_name_;  // indices into within_
  std::map<ExpertKey, std::vector<uint32_t>> experts_;
  std::optional<Manifest> manifest_;
  std::vector<std::string> warnings_;
  std::vector<std::string> expert_doubts_;
  std::vector<FusedTensor> fused_;
};

}  // namespace dspack::format
