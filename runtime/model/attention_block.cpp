#include "runtime/model/attention_block.h"

#include "runtime/model/mla_attention.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {

std::unique_ptr<AttentionBlock> make_attention(const ModelConfig& config, const AttentionOptions& options,
                                               LayerId layer) {
  return std::make_unique<MlaAttention>(config, options, layer);
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

bool needs_choice(const ModelConfig& config, const AttentionBlock::Input& input, const PassPart& part) {
  return input.use != ChoiceUse::as_needed || !part.position.live.empty() ||
         uint64_t{part.position.first} + part.rows > config.indexer->most;
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
