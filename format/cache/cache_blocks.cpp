#include "format/cache/cache_blocks.h"

#include <algorithm>

#include "format/manifest.h"

namespace dspack::format {
namespace {

// Block size for an ordinary origin; a packed one has its own.
constexpr uint64_t kCacheBlockBytes = 1 << 20;

bool may_be_a_copy(std::string_view name) {
  return name.ends_with("embed_tokens.weight") || name.ends_with("shared_head.head.weight");
}

const RowBlocks* declared_blocks(const Checkpoint& catalogue, uint32_t tensor) {
  const TensorEntry& entry = catalogue.tensors()[tensor];
  const PackedFile& file = catalogue.manifest()->files[entry.file];
  const Layout& layout = catalogue.manifest()->layouts[file.layout];
  const auto begin = [&](const RowBlocks& blocks) {
    return file.data_start + layout.tensors[blocks.tensor].data.begin;
  };
  const auto found = std::ranges::lower_bound(file.row_blocks, entry.range.begin, {}, begin);
  if (found == file.row_blocks.end() || begin(*found) != entry.range.begin) return nullptr;
  return layout.tensors[found->tensor].data.size() == entry.range.size() ? &*found : nullptr;
}

}  // namespace

uint64_t rows_per_cache_block(const Checkpoint& catalogue, uint32_t tensor) {
  const TensorEntry& entry = catalogue.tensors()[tensor];
  if (entry.shape.size() != 2 || entry.shape[0] == 0 || entry.range.size() % entry.shape[0] != 0) return 0;
  if (catalogue.manifest()) {
    const RowBlocks* blocks = declared_blocks(catalogue, tensor);
    return blocks == nullptr ? 0 : blocks->rows_per_block;
  }
  const uint64_t row_bytes = entry.range.size() / entry.shape[0];
  if (row_bytes == 0 || !may_be_a_copy(entry.name)) return 0;
  return std::max<uint64_t>(1, kCacheBlockBytes / row_bytes);
}

std::optional<Digest> declared_block(const Checkpoint& catalogue, uint32_t tensor, uint64_t block) {
  const RowBlocks* blocks = catalogue.manifest() ? declared_blocks(catalogue, tensor) : nullptr;
  if (blocks == nullptr || block >= blocks->digests.size()) return std::nullopt;
  return blocks->digests[block];
}

}  // namespace dspack::format
