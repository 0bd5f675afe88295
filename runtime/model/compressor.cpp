#include "runtime/model/compressor.h"

namespace dspack::runtime {

Compressor::Compressor(const ModelConfig& config, const Shape& shape, uint32_t wave_rows, ScratchPlan& plan)
    : config_(config),
      shape_(shape),
      values_at_(plan.add(uint64_t{wave_rows} * width())),
      gates_at_(plan.add(uint64_t{wave_rows} * width())) {}

// An entry is computed from the rows of its block and, if entries overlap, of the block before. Continuing after a
// position therefore needs the rows of its unfinished block, and of the block before that.
std::vector<CachePlane> Compressor::cache_planes() const {
  const uint32_t back = shape_.overlaps ? shape_.every : 0;
  const uint32_t values = 2 * width();
  return {{.name = shape_.entries,
           .width = shape_.dim,
           .dtype = shape_.dtype,
           .row_bytes = bytes_of(shape_.dtype, shape_.dim),
           .every = shape_.every},
          {.name = shape_.state,
           .width = values,
           .dtype = Dtype::f32,
           .row_bytes = values * sizeof(float),
           .ring = back + shape_.every - 1 + CachePlane::kRewind,
           .block = shape_.every,
           .back = back}};
}

Result<void> Compressor::add_weights(WeightGroup& group, const std::string& name) {
  TRY(group.add_linear(&values_, name + ".wkv.weight", width(), config_.hidden));
  TRY(group.add_linear(&gates_, name + ".wgate.weight", width(), config_.hidden));
  TRY(group.add_table(&ape_, name + ".ape", shape_.every, width()));
  return group.add_vector(&norm_, name + ".norm.weight", shape_.dim);
}

void Compressor::add_products(const AttentionBlock::Input& input, std::vector<kernels::Product>& products) const {
  products.push_back(
      {.weight = values_.weight(), .y = dense_rows(input.scratch.at(values_at_), input.x.rows, width())});
  products.push_back({.weight = gates_.weight(), .y = dense_rows(input.scratch.at(gates_at_), input.x.rows, width())});
}

void Compressor::run(kernels::Queue& queue, const AttentionBlock::Input& input) const {
  const kernels::Rows values = dense_rows(input.scratch.at(values_at_), input.x.rows, width());
  const kernels::Rows gates = dense_rows(input.scratch.at(gates_at_), input.x.rows, width());
  for_each_part(input.parts, input.first_row, input.x.rows, [&](const PassPart& part, uint32_t at) {
    const CacheRows state = part.cache->rows(input.layer, shape_.state);
    queue.compress({.values = rows_of(values, at, part.rows),
                    .gates = rows_of(gates, at, part.rows),
                    .ape = ape_,
                    .state = state.data,
                    .state_rows = state.rows,
                    .entries = entries(*part.cache, input.layer).data,
                    .dtype = shape_.dtype,
                    .gain = norm_,
                    .epsilon = config_.norm_epsilon,
                    .cos_sin = input.tables.entry_cos_sin,
                    .rope_dim = config_.rope_dim,
                    .dim = shape_.dim,
                    .every = shape_.every,
                    .overlaps = shape_.overlaps,
                    .first_position = part.position.first});
  });
}

}  // namespace dspack::runtime
