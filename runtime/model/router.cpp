#include "runtime/model/router.h"

#include <fmt/format.h>

#include <utility>

#include "format/weights/find_tensor.h"

namespace dspack::runtime {

namespace {

std::string table_name(const ModelConfig& config, LayerId layer) {
  return fmt::format("{}.{}.gate.tid2eid", config.names->layer(layer), config.names->mlp);
}

}  // namespace

Result<void> add_router(WeightGroup& group, RouterWeights& weights, const ModelConfig& config, LayerId layer,
                        const std::string& mlp) {
  TRY(group.add_linear(&weights.scores, mlp + ".gate.weight", config.experts, config.hidden));
  if (!config.selection_bias || config.is_by_token(layer)) return {};
  return group.add_vector(&weights.bias, fmt::format("{}.{}", mlp, config.names->router_bias), config.experts);
}

Result<std::shared_ptr<const ExpertsByToken>> ExpertsByToken::make(const LoadContext& context,
                                                                   std::vector<uint32_t> experts) {
  auto table = std::make_shared<ExpertsByToken>();
  TRY_ASSIGN(table->memory_, context.device.allocate(experts.size() * sizeof(uint32_t)));
  context.queue.upload(table->on_device(), std::as_bytes(std::span(experts)));
  TRY(context.queue.finish());
  if (table->memory_->host().empty()) table->copy_ = std::move(experts);
  return std::shared_ptr<const ExpertsByToken>(std::move(table));
}

std::span<const uint32_t> ExpertsByToken::on_host() const {
  const std::span<const std::byte> bytes = memory_->host();
  if (bytes.empty()) return copy_;
  return {reinterpret_cast<const uint32_t*>(bytes.data()), bytes.size() / sizeof(uint32_t)};
}

Result<void> load_experts_by_token(const LoadContext& context, const ModelConfig& config, LayerId layer,
                                   RouterWeights& weights, const std::stop_token& stop) {
  if (!config.is_by_token(layer)) return {};
  const format::Checkpoint& checkpoint = context.access.catalogue();
  TRY_ASSIGN(const format::TensorEntry* table,
             format::find_tensor(checkpoint, table_name(config, layer), {config.vocab, config.top_k}));
  if (table->dtype != Dtype::i64) {
    return Error{ErrorKind::unsupported, fmt::format("{} is stored as {}; it can be I64", place_of(checkpoint, *table),
                                                     to_string(table->dtype))};
  }
  std::vector<int64_t> stored(uint64_t{config.vocab} * config.top_k);
  TRY(context.access.read(*table, 0, std::as_writable_bytes(std::span(stored)), WeightPurpose::always_needed, stop));
  std::vector<uint32_t> ids;
  ids.reserve(stored.size());
  for (const int64_t id : stored) {
    if (id < 0 || id >= config.experts) {
      return Error{ErrorKind::invalid,
                   fmt::format("{} sends token {} to expert {}, of {}", place_of(checkpoint, *table),
                               ids.size() / config.top_k, id, config.experts)};
    }
    ids.push_back(static_cast<uint32_t>(id));
  }
  TRY_ASSIGN(weights.by_token, ExpertsByToken::make(context, std::move(ids)));
  return {};
}

void Router::route(kernels::Queue& queue, const RouterWeights& weights, const kernels::Rows& x, kernels::Slice tokens,
                   const Places& places, const TraceScope& trace) const {
  kernels::RouterArgs args{.logits = places.logits,
                           .bias = weights.bias,
                           .ids = places.ids,
                           .weights = places.weights,
                           .rows = x.rows,
                           .experts = config_.experts,
                           .top_k = config_.top_k,
                           .groups = config_.groups,
                           .groups_kept = config_.groups_kept,
                           .score = config_.score,
                           .group_score = config_.group_score,
                           .normalise = config_.normalise,
                           .scale = config_.routed_scale};
  if (weights.by_token != nullptr) {
    DSPACK_CHECK(!tokens.empty(), "a layer that finds experts by token needs the rows' tokens");
    args.by_token = {.experts = weights.by_token->on_device(), .tokens = tokens, .vocabulary = config_.vocab};
  }
  if (!trace.on()) return queue.route_rows(weights.scores.weight(), x, args);
  apply(weights.scores, queue, x,
        {.data = places.logits, .rows = x.rows, .cols = config_.experts, .stride = config_.experts}, trace, "gate");
  queue.route(args);
  trace.child("gate").routing({.ids = args.ids, .weights = args.weights, .rows = x.rows, .top_k = args.top_k});
}

std::vector<uint32_t> Router::known(const RouterWeights& weights, std::span<const uint32_t> tokens) const {
  DSPACK_CHECK(weights.by_token != nullptr, "a router that chooses by what it reads");
  std::vector<uint32_t> ids;
  ids.reserve(tokens.size() * config_.top_k);
  const std::span<const uint32_t> table = weights.by_token->on_host();
  for (const uint32_t token : tokens)
    std::ranges::copy(table.subspan(uint64_t{token} * config_.top_k, config_.top_k), std::back_inserter(ids));
  return ids;
}

}  // namespace dspack::runtime
