#include "runtime/model/attention_block.h"

#include "runtime/model/mla_attention.h"
#include "runtime/model/window_attention.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {

std::unique_ptr<AttentionBlock> make_attention(const ModelConfig& config, const AttentionOptions& options,
                                               LayerId layer) {
  if (config.window) return std::make_unique<WindowAttention>(config, options, layer);
  return std::make_unique<MlaAttention>(config, options, layer);
}

uint64_t attention_scratch_bytes(const ModelConfig& config, const AttentionOptions& options) {
  uint64_t bytes = 0;
  for (uint32_t layer = 0; layer < config.layers; ++layer)
    bytes = std::max(bytes, make_attention(config, options, LayerId(layer))->scratch_bytes());
  return bytes;
}

KvShape kv_shape(const ModelConfig& config, const AttentionOptions& options, std::span<const LayerId> pass) {
  KvShape shape{.layers = static_cast<uint32_t>(pass.size()), .planes = {}};
  for (uint32_t index = 0; index < pass.size(); ++index) {
    for (CachePlane& plane : make_attention(config, options, pass[index])->cache_planes()) {
      auto found = std::ranges::find(shape.planes, plane.name, &CachePlane::name);
      if (found == shape.planes.end()) found = shape.planes.insert(found, std::move(plane));
      found->layers.push_back(index);
    }
  }
  for (CachePlane& plane : shape.planes) {
    if (plane.layers.size() == pass.size()) plane.layers.clear();
  }
  return shape;
}

kernels::RopeArgs rope_args(const AttentionBlock::Input& input, const PassPart& part, const kernels::Rows& rows,
                            const RotatedValues& values) {
  return {.data = rows.data.at(uint64_t{values.first} * sizeof(float)),
          .rows = part.rows,
          .heads = values.heads,
          .dim = values.dim,
          .head_stride = rows.cols / values.heads,
          .row_stride = rows.stride,
          .first_position = part.position.first,
          .cos_sin = input.tables.cos_sin,
          .live = part.position.live,
          .pairs = values.pairs};
}

void rotate_rows(kernels::Queue& queue, const AttentionBlock::Input& input, const kernels::Rows& rows,
                 const RotatedValues& values) {
  for_each_part(input.parts, input.first_row, rows.rows, [&](const PassPart& part, uint32_t at) {
    queue.rope(rope_args(input, part, rows_of(rows, at, part.rows), values));
  });
}

}  // namespace dspack::runtime
