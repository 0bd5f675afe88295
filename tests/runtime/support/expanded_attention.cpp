#include "tests/runtime/support/expanded_attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/model/mla_attention.h"
#include "runtime/model/rope.h"
#include "runtime/weights/host_rows.h"
#include "runtime/weights/scratch.h"
#include "tests/support/cache_rows.h"

namespace dspack::test {

namespace {

// Query row r stands at position first_position + r and sees positions 0 to there.
struct Args {
  std::span<const float> queries;   // [rows, heads, nope_dim + rope_dim], the second part rotated
  std::span<const float> expanded;  // [positions, heads, nope_dim + value_dim]: what kv_b_proj makes of the latents
  std::span<const float> cache;     // [positions, cache_dim]; its last rope_dim columns are the rotated shared keys
  std::span<float> out;             // [rows, heads, value_dim]
  uint32_t rows = 0;
  uint32_t heads = 0;
  uint32_t nope_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t value_dim = 0;
  uint32_t cache_dim = 0;
  uint32_t first_position = 0;
  float scale = 0;
};

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

void softmax(std::vector<double>& scores) {
  const double highest = *std::ranges::max_element(scores);
  double sum = 0;
  for (double& score : scores) {
    score = std::exp(score - highest);
    sum += score;
  }
  for (double& score : scores)
    score /= sum;
}

// out[r, h] = softmax over positions of (query . [key | rotary key] * scale), times the values.
void expanded_attention(const Args& args) {
  const size_t query_dim = args.nope_dim + args.rope_dim;
  const size_t pair_dim = args.nope_dim + args.value_dim;
  const size_t positions = args.first_position + args.rows;
  REQUIRE(args.queries.size() == size_t{args.rows} * args.heads * query_dim);
  REQUIRE(args.expanded.size() == positions * args.heads * pair_dim);
  REQUIRE(args.cache.size() == positions * args.cache_dim);
  REQUIRE(args.out.size() == size_t{args.rows} * args.heads * args.value_dim);
  std::vector<double> weights;
  std::vector<double> sum(args.value_dim);
  for (size_t row = 0; row < args.rows; ++row) {
    for (size_t head = 0; head < args.heads; ++head) {
      const auto query = args.queries.subspan((row * args.heads + head) * query_dim, query_dim);
      weights.resize(args.first_position + row + 1);
      for (size_t at = 0; at < weights.size(); ++at) {
        const auto key = args.expanded.subspan((at * args.heads + head) * pair_dim, args.nope_dim);
        const auto turned = args.cache.subspan((at + 1) * args.cache_dim - args.rope_dim, args.rope_dim);
        weights[at] = (dot(query.first(args.nope_dim), key) + dot(query.last(args.rope_dim), turned)) * args.scale;
      }
      softmax(weights);
      std::ranges::fill(sum, 0.0);
      for (size_t at = 0; at < weights.size(); ++at) {
        const auto value = args.expanded.subspan((at * args.heads + head) * pair_dim + args.nope_dim, args.value_dim);
        for (size_t i = 0; i < sum.size(); ++i)
          sum[i] += weights[at] * value[i];
      }
      const auto out = args.out.subspan((row * args.heads + head) * args.value_dim, args.value_dim);
      std::ranges::transform(sum, out.begin(), [](double value) { return static_cast<float>(value); });
    }
  }
}

}  // namespace

struct ExpandedAttention::Layer {
  std::unique_ptr<kernels::Buffer> memory;
  runtime::Linear kv_b;   // [heads * (nope_dim + value_dim), kv_rank]
  uint32_t index = 0;     // in the pass
  uint32_t rows = 0;      // of the present pass that it has seen
  kernels::Rows queries;  // of the present wave
};

ExpandedAttention::ExpandedAttention(const runtime::LoadContext& context, const runtime::Model& model,
                                     const runtime::Sequence& sequence, uint32_t tokens, runtime::Trace* inner)
    : device_(context.device),
      queue_(context.queue),
      config_(model.config()),
      sequence_(sequence),
      tokens_(tokens),
      inner_(inner) {
  for (uint32_t index = 0; index < model.layer_map().size(); ++index) {
    auto layer = std::make_unique<Layer>();
    layer->index = index;
    runtime::WeightGroup group(context);
    const std::string name = runtime::layer_module(model.layer_map()[index]) + ".self_attn.kv_b_proj.weight";
    REQUIRE(
        group.add_linear(&layer->kv_b, name, config_.heads * (config_.nope_dim + config_.value_dim), config_.kv_rank));
    auto memory = group.load(runtime::WeightPurpose::always_needed, {});
    REQUIRE(memory);
    layer->memory = std::move(*memory);
    layers_[runtime::layer_module(LayerId(index))] = std::move(layer);
  }
}

ExpandedAttention::~ExpandedAttention() = default;

Result<void> ExpandedAttention::status() const {
  return inner_ == nullptr ? Result<void>() : inner_->status();
}

std::vector<float> ExpandedAttention::values(const kernels::Rows& rows) {
  return runtime::download_rows(queue_, rows);
}

std::vector<float> ExpandedAttention::stored_values(const runtime::CacheRows& rows, uint32_t positions) {
  std::vector<uint8_t> bytes(positions * kernels::cache_row_bytes(rows.dtype, config_.cache_shape()));
  queue_.download(std::as_writable_bytes(std::span(bytes)), rows.data);
  queue_.synchronize();
  return decoded_cache(bytes, rows.dtype, config_.cache_shape());
}

void ExpandedAttention::input(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) {
  constexpr std::string_view kOut = ".self_attn.o_proj";
  if (module.ends_with(kOut)) {
    const std::string name(module.substr(0, module.size() - kOut.size()));
    attend(name, *layers_.at(name), rows);
  }
  if (inner_ != nullptr) inner_->input(module, rows, total_rows);
}

void ExpandedAttention::output(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) {
  if (module == "model.embed_tokens") {
    for (auto& [name, layer] : layers_)
      layer->rows = 0;
  }
  for (const std::string_view queries : {".self_attn.q_b_proj", ".self_attn.q_proj"}) {
    // They are rotated where they lie before anything reads them.
    if (module.ends_with(queries))
      layers_.find(module.substr(0, module.size() - queries.size()))->second->queries = rows;
  }
  if (inner_ != nullptr) inner_->output(module, rows, total_rows);
}

void ExpandedAttention::routing(std::string_view module, const Routing& routing) {
  if (inner_ != nullptr) inner_->routing(module, routing);
}

// The keys and values of all positions are expanded again for every wave; only the wave's own are told of.
void ExpandedAttention::attend(const std::string& layer_name, Layer& layer, const kernels::Rows& heads) {
  const runtime::CacheRows stored = sequence_.cache().rows(layer.index, runtime::MlaAttention::kLatents);
  const uint32_t first_position = sequence_.length() + layer.rows;
  const uint32_t positions = first_position + heads.rows;
  const uint32_t width = config_.heads * (config_.nope_dim + config_.value_dim);
  auto memory = device_.allocate(uint64_t{positions} * (config_.cache_dim() + width) * sizeof(float));
  REQUIRE(memory);
  const kernels::Rows cached{.data = {.buffer = memory->get(), .offset_bytes = 0},
                             .rows = positions,
                             .cols = config_.cache_dim(),
                             .stride = config_.cache_dim()};
  const std::vector<float> cache = stored_values(stored, positions);
  runtime::upload_rows(queue_, cached, cache);
  kernels::Rows latents = cached;
  latents.cols = config_.kv_rank;
  const kernels::Rows expanded{.data = cached.data.at(uint64_t{positions} * config_.cache_dim() * sizeof(float)),
                               .rows = positions,
                               .cols = width,
                               .stride = width};
  const std::string module = layer_name + ".self_attn.kv_b_proj";
  if (inner_ != nullptr) inner_->input(module, runtime::rows_of(latents, first_position, heads.rows), tokens_);
  layer.kv_b.apply(queue_, latents, expanded);
  if (inner_ != nullptr) inner_->output(module, runtime::rows_of(expanded, first_position, heads.rows), tokens_);

  std::vector<float> out(size_t{heads.rows} * heads.cols);
  const std::vector<float> queries = values(layer.queries);
  const std::vector<float> keys_and_values = values(expanded);
  expanded_attention({.queries = queries,
                      .expanded = keys_and_values,
                      .cache = cache,
                      .out = out,
                      .rows = heads.rows,
                      .heads = config_.heads,
                      .nope_dim = config_.nope_dim,
                      .rope_dim = config_.rope_dim,
                      .value_dim = config_.value_dim,
                      .cache_dim = config_.cache_dim(),
                      .first_position = first_position,
                      .scale = runtime::attention_scale(config_.rope, config_.query_dim())});
  runtime::upload_rows(queue_, heads, out);
  layer.rows += heads.rows;
  ++replaced_;
}

}  // namespace dspack::test
