// The manifest of a packed repository: its contents, file by file, with digests and provenance. docs/format.md
// specifies it; this is its reader and writer.
// Threads: a plain value. Errors of parsing: invalid (breaks the format), corrupt (its seal does not match),
// unsupported (a newer major version, or a requirement that this version lacks; both are named).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "format/compressed/frames.h"
#include "format/digest.h"
#include "format/dtype.h"
#include "format/json.h"
#include "format/layer_map.h"
#include "format/tensor_name.h"

namespace dspack::format {

inline constexpr char kManifestPath[] = "manifest.json";
/// Field of the layer map, also its name in `requires`.
inline constexpr char kLayerMapKey[] = "layer_map";
/// Field of the aliases, also their name in `requires`.
inline constexpr char kAliasesKey[] = "aliases";
/// Field of a file's compressed form, also its name in `requires`.
inline constexpr char kZstdKey[] = "zstd";
/// In `requires`: in some names the numbers have other places than in V3's names.
inline constexpr char kNameFamiliesKey[] = "name_families";
/// In `requires`: some tensors are slices of the source's, one per expert; the kept headers list the whole ones.
inline constexpr char kFusedExpertsKey[] = "fused_experts";
/// Field that holds the digest of the manifest's text with an empty seal.
inline constexpr char kSealKey[] = "seal";

/// One tensor of a layout: its name as a template and its place relative to the file's byte buffer.
struct LayoutTensor {
  std::string name;  // a name_template if the file has a layer, otherwise literal; tensor_name expands it
  Dtype dtype = Dtype::u8;
  std::vector<uint64_t> shape;
  ByteRange data;
};

/// The tensors of a file, written once for all files that have the same.
struct Layout {
  std::vector<LayoutTensor> tensors;  // by offset
};

/// Digests of consecutive blocks of whole rows of a tensor, so that parts of it can be checked (the embedding).
struct RowBlocks {
  uint64_t tensor = 0;  // index into the layout
  uint64_t rows_per_block = 0;
  std::vector<Digest> digests;  // ceil(rows / rows_per_block)
};

/// A routed expert that is whole in one file.
struct PackedExpert {
  ExpertKey key;
  Digest digest;  // expert_digest: equal in every grouping
};

/// A file of weights.
struct PackedFile {
  std::string path;
  std::string part;                   // embed, head, other, dense, expert (one or several) or shard (anything)
  std::optional<LayerId> layer;       // common to all its tensors; nullopt: their names are literal
  std::vector<PackedExpert> experts;  // ascending by key
  uint64_t layout = 0;                // index into Manifest::layouts
  uint64_t size_bytes = 0;
  uint64_t data_start = 0;
  Digest sha256;
  std::vector<Digest> tensors;         // in the layout's order
  std::optional<CompressedForm> zstd;  // stored compressed, as path + kCompressedSuffix; size and digests above are raw
  std::vector<RowBlocks> row_blocks;   // ascending by tensor
};

/// Any file without weights: copied from the source byte for byte, or written by us (index, model card, headers).
struct CompanionFile {
  std::string path;
  uint64_t size_bytes = 0;
  Digest sha256;
};

struct SourceShard {
  std::string path;
  uint64_t size_bytes = 0;
  std::optional<Digest> sha256;  // whole file, as it was read; nullopt: not read whole
  uint64_t read_bytes = 0;       // bytes that were read, if not all
};

struct Origin {
  std::string kind;        // "hub", or "folder" (local or HTTP)
  std::string repository;  // "org/name" for the Hub; else empty: an address does not identify weights
  std::string revision;    // for the Hub
};

/// Counts.
struct Extension {
  uint64_t layers = 0;  // decoder layers, the MTP module's included
  uint64_t experts = 0;
  uint64_t tensors = 0;
  uint64_t payload_bytes = 0;
  bool operator==(const Extension&) const = default;
};

struct Coverage : Extension {
  std::optional<Extension> of{};  // the whole model's, if the recipe left out a part of it
};

struct Manifest {
  uint64_t major = 1;
  uint64_t minor = 0;
  std::vector<std::string> requirements;
  std::string program;  // "dspack 0.1.0"
  Json recipe;
  std::optional<LayerMap> layer_map;  // absent: all layers, once each; `requirements` then lacks kLayerMapKey
  std::string plan;  // hex digest of recipe, program version and source catalogue: equal plans give equal files
  Origin origin;
  Coverage coverage;
  Json rounding_errors;  // per role, for weights that a transform has rounded; null: none
  std::vector<SourceShard> source;
  std::vector<Layout> layouts;
  std::vector<PackedFile> files;          // by path
  std::vector<CompanionFile> companions;  // by path
  /// Alias -> tensor with the same bytes, which are stored once. If not empty, `requirements` has kAliasesKey.
  std::map<std::string, std::string> aliases;
};

/// Canonical text, ending in a newline; its field "seal" is the SHA-256 of the text with an empty seal.
[[nodiscard]] std::string write_manifest(const Manifest& manifest);
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text);

/// Path, size and digest of a file as it is stored, compressed or not.
struct StoredFile {
  std::string path;
  uint64_t size_bytes = 0;
  Digest sha256;
};
[[nodiscard]] StoredFile stored_file(const PackedFile& file);
/// Offsets at which the raw bytes of a file are cut for compression.
[[nodiscard]] std::vector<uint64_t> frame_cuts(const PackedFile& file, const Layout& layout);

/// Whether `requires` has this name.
[[nodiscard]] bool has_requirement(const Manifest& manifest, std::string_view name);

/// The name in `file` of a tensor of its layout. Precondition: the file lists every expert that the layout names, which
/// parse_manifest checks.
[[nodiscard]] std::string tensor_name(const PackedFile& file, const LayoutTensor& tensor);
/// Whether the source's shards can be rebuilt from the packed bytes: nothing was left out or converted.
[[nodiscard]] bool holds_source_bytes(const Manifest& manifest);
/// The index of an expert in `file.experts`; nullopt: it is not in the file.
[[nodiscard]] std::optional<size_t> find_expert(const PackedFile& file, ExpertKey key);

/// Digest of an expert from those of its tensors: SHA-256 over one line "name dtype [shape] sha256\n" per tensor, by
/// name.
struct NamedDigest {
  std::string name;
  Dtype dtype = Dtype::u8;
  std::vector<uint64_t> shape;
  Digest digest;
};
[[nodiscard]] Digest expert_digest(std::vector<NamedDigest> tensors);

}  // namespace dspack::format
