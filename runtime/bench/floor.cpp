#include "runtime/bench/floor.h"

#include <algorithm>
#include <initializer_list>

#include "runtime/model/mla_attention.h"

namespace dspack::runtime {
namespace {

double as_real(uint64_t count) {
  return static_cast<double>(count);
}

uint64_t moe_layers(const Model& model) {
  return static_cast<uint64_t>(
      std::ranges::count_if(model.layer_map(), [&](LayerId layer) { return model.config().is_moe(layer); }));
}

// Pairs of a token and a position that it sees, itself included, for `tokens` tokens from `first` on.
double pairs_of(uint64_t first, uint64_t tokens) {
  return as_real(tokens) * as_real(first) + as_real(tokens) * (as_real(tokens) + 1) / 2;
}

// The same if a token sees at most `most` positions; 0: all.
double pairs_of(uint64_t first, uint64_t tokens, uint64_t most) {
  if (most == 0) return pairs_of(first, tokens);
  const uint64_t all = first >= most ? 0 : std::min(tokens, most - first);  // tokens that see all positions
  return pairs_of(first, all) + as_real(tokens - all) * as_real(most);
}

// Pairs that an indexer scores: those of tokens that see more positions than they attend to.
double scored_pairs(uint64_t first, uint64_t tokens, uint64_t most) {
  const uint64_t all = first >= most ? 0 : std::min(tokens, most - first);
  return pairs_of(first + all, tokens - all);
}

uint64_t indexers(const Model& model) {
  return static_cast<uint64_t>(
      std::ranges::count_if(model.layer_map(), [&](LayerId layer) { return model.config().has_indexer(layer); }));
}

}  // namespace

ModelWork model_work(LoadedModel& loaded) {
  const Model& model = loaded.model();
  const ModelConfig& config = model.config();
  const auto depth = static_cast<uint64_t>(model.layer_map().size());
  const ExpertStoreStats stats = loaded.experts().stats();
  ModelWork work;
  work.layers = model.layer_work();
  work.head = model.head_work();
  work.expert.multiplications = uint64_t{3} * config.hidden * config.expert_inner;
  if (stats.resident_experts > 0) work.expert.bytes = stats.resident_bytes / stats.resident_experts;
  if (loaded.mtp() != nullptr) work.module = loaded.mtp()->work();
  work.experts_a_token = moe_layers(model) * config.top_k;
  // Attention to a window and entries is not counted: its cost hardly grows with the position.
  if (config.window) return work;
  const KvShape shape = model.kv_shape();
  for (const CachePlane& plane : shape.planes) {
    uint64_t& bytes = plane.name == MlaAttention::kLatents ? work.cache_bytes : work.index_bytes;
    bytes += plane.layers_of(shape.layers) * plane.row_bytes;
  }
  if (config.indexer) {
    work.most_attended = config.indexer->most;
    work.index_scores = indexers(model) * config.indexer->heads * (uint64_t{config.indexer->dim} + 1);
  }
  work.scores = depth * config.heads * (2 * uint64_t{config.kv_rank} + config.rope_dim);
  work.expanded_scores = depth * config.heads * (uint64_t{config.query_dim()} + config.value_dim);
  work.expansion = depth * config.heads * (uint64_t{config.nope_dim} + config.value_dim) * config.kv_rank;
  return work;
}

Work work_of(const ModelWork& model, const PassCounts& counts) {
  Work work;
  const double passes = as_real(counts.passes), tokens = as_real(counts.tokens);
  const double pairs = pairs_of(counts.first, counts.tokens, model.most_attended);
  const double scored = model.most_attended == 0 ? 0 : scored_pairs(counts.first, counts.tokens, model.most_attended);
  work.bytes = passes * as_real(model.layers.bytes) + as_real(counts.chosen) * as_real(model.head.bytes) +
               as_real(counts.module_passes) * as_real(model.module.bytes) +
               as_real(counts.experts) * as_real(model.expert.bytes);
  // A pass reads the cache once, for the last of its tokens.
  if (tokens > 0) {
    work.bytes += passes / tokens * (pairs * as_real(model.cache_bytes) + scored * as_real(model.index_bytes));
  }
  // The layers' multiplications include expanding each token, or absorption, which costs the same.
  const double absorbed = pairs * as_real(model.scores), expanded = pairs * as_real(model.expanded_scores);
  const double expansion = as_real(counts.first) * as_real(model.expansion);
  const bool expands = expanded + expansion < absorbed;
  const double multiplications = tokens * (as_real(model.layers.multiplications) +
                                           as_real(model.experts_a_token) * as_real(model.expert.multiplications)) +
                                 as_real(counts.chosen) * as_real(model.head.multiplications) +
                                 as_real(counts.module_passes) * as_real(model.module.multiplications) +
                                 (expands ? expansion : 0);
  work.operations = 2 * multiplications;
  work.attention = 2 * ((expands ? expanded : absorbed) + scored * as_real(model.index_scores));
  work.fetched = as_real(counts.fetched_bytes);
  return work;
}

Floor floor_of(const Work& work, const MachineLimits& limits) {
  Floor floor;
  const auto time = [](double amount, double rate) { return rate > 0 ? amount / rate : 0; };
  const auto consider = [&floor](double seconds, std::string_view name) {
    if (seconds > floor.seconds) floor = {.seconds = seconds, .bound = name};
  };
  consider(time(work.bytes, limits.bytes), "memory");
  consider(time(work.operations, limits.operations) + time(work.attention, limits.exact_operations), "operations");
  consider(time(work.fetched, limits.fetched), "fetching");
  return floor;
}

}  // namespace dspack::runtime
