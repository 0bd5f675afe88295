#include "runtime/budget/compute_trial.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "format/base/size.h"
#include "kernels/cpu/cpu_device.h"
#include "runtime/budget/link_trial.h"
#include "runtime/config/config.h"
#include "runtime/experts/executor.h"

namespace dspack::runtime {

namespace {

// The part of a device's buffer that is filled from the host; the rest is copied from it on the device.
constexpr uint64_t kStagingBytes = 1ULL << 20;

Result<void> fill_with_zeros(const LoadContext& context, kernels::Buffer& buffer) {
  if (context.device.is_host()) {
    std::ranges::fill(kernels::host_bytes(buffer), std::byte{0});
    return {};
  }
  const uint64_t bytes = buffer.size_bytes();
  const std::vector<std::byte> staging(std::min(bytes, kStagingBytes));
  context.queue.upload({.buffer = &buffer, .offset_bytes = 0}, staging);
  for (uint64_t done = staging.size(); done < bytes;) {
    const uint64_t more = std::min(done, bytes - done);
    context.queue.copy({.buffer = &buffer, .offset_bytes = done}, {.buffer = &buffer, .offset_bytes = 0}, more);
    done += more;
  }
  return context.queue.finish();
}

/// Zeroed memory with its pages allocated: a page that was never written is not read from memory.
Result<std::unique_ptr<kernels::Buffer>> zeros(const LoadContext& context, uint64_t bytes) {
  TRY_ASSIGN(auto buffer, context.device.allocate(bytes));
  TRY(fill_with_zeros(context, *buffer));
  return buffer;
}

/// The number of copies of `bytes` bytes that makes turns read from memory instead of caches, at most `in_a_pass`.
uint64_t copies_of(const kernels::Device& device, uint64_t bytes, uint64_t in_a_pass) {
  const uint64_t most = device.is_host() ? kTrialBytes : kDeviceTrialBytes;
  return std::clamp<uint64_t>(most / std::max<uint64_t>(1, bytes), 1, std::max<uint64_t>(1, in_a_pass));
}

class NoExperts final : public ExpertExecutor {
 public:
  void begin_pass(const ExpertPass& /*pass*/) override {}
  void accept_drafts(uint32_t /*rows*/) override {}
  Result<void> run(const RoutedTokens& tokens, const kernels::Rows& /*y*/, const std::stop_token& /*stop*/) override {
    if (tokens.meanwhile) tokens.meanwhile();
    return {};
  }
};

class Trial {
 public:
  Trial(const LoadContext& context, const ModelConfig& config, ModelOptions options, const TrialPass& pass,
        const std::stop_token& stop)
      : context_(context), config_(config), options_(std::move(options)), pass_(pass), stop_(stop) {
    options_.max_rows = pass.rows;
    options_.wave_rows = std::min(options_.wave_rows, pass.rows);
    options_.context = pass.position + pass.rows;
    pass_.timing.warms_up = !context.device.is_host();
  }

  Result<ComputeTimes> run() {
    ComputeTimes times;
    if (!layers_of(true).empty()) {
      TRY_ASSIGN(times, run_experts());
    }
    TRY_ASSIGN(times.dense_layer, time_layer(false));
    TRY_ASSIGN(times.moe_layer, time_layer(true));
    if (pass_.has_head) {
      TRY_ASSIGN(times.head, time_head());
    }
    return times;
  }

  Result<ComputeTimes> run_experts() {
    const std::vector<LayerId> layers = layers_of(true);
    TRY_ASSIGN(const TrialExpert like,
               find_trial_expert(context_.access.catalogue(), {.shape = expert_shape(config_),
                                                               .experts = config_.experts,
                                                               .layers = {layers.begin(), layers.end()}}));
    const uint64_t in_a_pass = std::min<uint64_t>(layers.size() * uint64_t{config_.top_k} * pass_.rows,
                                                  context_.access.catalogue().experts().size());
    return time_table(like, in_a_pass);
  }

 private:
  [[nodiscard]] std::vector<LayerId> layers_of(bool is_moe) const {
    std::vector<LayerId> layers;
    for (const LayerId layer : options_.layer_map) {
      if (config_.is_moe(layer) == is_moe) layers.push_back(layer);
    }
    return layers;
  }

  [[nodiscard]] static kernels::Rows rows_in(kernels::Buffer& buffer, uint64_t offset, uint32_t rows, uint32_t cols) {
    return {.data = {.buffer = &buffer, .offset_bytes = offset}, .rows = rows, .cols = cols, .stride = cols};
  }

  // 0: the pass has no such layer.
  Result<double> time_layer(bool is_moe) {
    const std::vector<LayerId> layers = layers_of(is_moe);
    if (layers.empty()) return 0.0;
    LayerWeights first;
    TRY_ASSIGN(const WeightGroup needs, find_layer(context_, config_, options_.attention(), layers.front(), first));
    std::vector<std::unique_ptr<LayerWeights>> copies;
    for (uint64_t i = 0;
         i < copies_of(context_.device, needs.size_bytes(), std::set(layers.begin(), layers.end()).size()); ++i) {
      auto weights = std::make_unique<LayerWeights>();
      TRY_ASSIGN(WeightGroup group, find_layer(context_, config_, options_.attention(), layers.front(), *weights));
      TRY_ASSIGN(weights->memory, zeros(context_, group.size_bytes()));
      group.bind(*weights->memory);
      copies.push_back(std::move(weights));
    }
    ScratchPlan plan;
    const uint64_t stream = plan.add(uint64_t{pass_.rows} * Residual::width(config_));
    const uint64_t table = plan.add(position_table_values(config_, options_.context));
    const uint64_t position = plan.add(1);
    const LayerRunner runner(config_, options_.attention(), options_.max_rows, plan);
    TRY_ASSIGN(const auto scratch, zeros(context_, plan.size_bytes()));
    context_.queue.upload({.buffer = scratch.get(), .offset_bytes = position},
                          std::as_bytes(std::span(&pass_.position, 1)));
    context_.queue.synchronize();
    TRY_ASSIGN(const KvCache cache,
               KvCache::make(context_.device, 1, options_.context, first.attention->cache_planes()));
    TRY(fill_with_zeros(context_, cache.buffer()));
    first.attention->choose_first(context_.queue, runner.attention_scratch(*scratch), pass_.rows, pass_.position + 1);
    const PassPart part{.cache = &cache,
                        .rows = pass_.rows,
                        .position = position_at({.buffer = scratch.get(), .offset_bytes = position})};
    NoExperts executor;
    return seconds_a_turn(
        context_.queue, pass_.timing,
        [&](size_t number) {
          return runner.run(
              {.queue = context_.queue, .scratch = *scratch, .executor = executor, .stop = stop_},
              *copies[number % copies.size()],
              {.stream = rows_in(*scratch, stream, pass_.rows, Residual::width(config_)),
               .parts = std::span(&part, 1),
               .layer = 0,
               .tables = position_tables(config_, {.buffer = scratch.get(), .offset_bytes = table}, options_.context)});
        },
        stop_);
  }

  /// A recorded pass reads its position from memory.
  [[nodiscard]] PassPosition position_at(kernels::Slice place) const {
    if (pass_.timing.pace != Pace::recorded) return {.first = pass_.position};
    return {.first = 0, .live = {.value = place, .limit = options_.context}};
  }

  // The experts of every row: distinct, all equally likely.
  [[nodiscard]] std::vector<uint32_t> random_routes(uint32_t top_k) const {
    std::mt19937 random(1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same routes every time
    std::vector<uint32_t> ids;
    std::vector<uint32_t> all(config_.experts);
    std::iota(all.begin(), all.end(), 0U);
    for (uint32_t row = 0; row < pass_.rows; ++row) {
      std::ranges::shuffle(all, random);
      ids.insert(ids.end(), all.begin(), all.begin() + top_k);
    }
    return ids;
  }

  // Times a layer's experts in one operation. One token uses different copies, and others from turn to turn; if there
  // are fewer copies than a token has experts, fewer are run, and the time is scaled.
  Result<ComputeTimes> time_table(const TrialExpert& like, uint64_t in_a_pass) {
    const ExpertLayout& layout = like.layout;
    const bool is_host = context_.device.is_host();
    const uint64_t most = is_host ? in_a_pass : std::min(in_a_pass, pass_.most_experts);
    const uint64_t copies = copies_of(context_.device, layout.expert_bytes, std::min<uint64_t>(most, config_.experts));
    TRY_ASSIGN(const auto memory, zeros(context_, copies * layout.expert_bytes));
    std::vector<kernels::ExpertMatrices> matrices;
    for (uint32_t expert = 0; expert < config_.experts; ++expert) {
      const ExpertWeights weights = weights_at(layout, {memory.get(), expert % copies * layout.expert_bytes});
      matrices.push_back(weights.matrices());
    }
    TRY_ASSIGN(const auto table, context_.device.make_expert_table(matrices));
    const auto top_k = static_cast<uint32_t>(std::min<uint64_t>(config_.top_k, copies));
    const uint64_t choices = pass_.rows == 1 ? copies : 1;  // sets of experts that take turns
    std::vector<uint32_t> routes = random_routes(top_k);
    if (pass_.rows == 1) {
      routes.clear();
      for (uint64_t i = 0; i < choices * top_k; ++i)
        routes.push_back(static_cast<uint32_t>(i % copies));
    }
    TRY_ASSIGN(const Routed routed, route(routes));
    TRY_ASSIGN(const auto scratch,
               context_.device.allocate(context_.device.experts_scratch_bytes({.hidden = config_.hidden,
                                                                               .inner = config_.expert_inner,
                                                                               .experts = config_.experts,
                                                                               .top_k = top_k,
                                                                               .rows = pass_.rows})));
    const Pace on_device = pass_.timing.pace == Pace::recorded ? Pace::recorded : Pace::enqueued;
    const Pace pace = is_host ? Pace::awaited : on_device;
    ComputeTimes times;
    TRY_ASSIGN(times.experts,
               seconds_a_turn(
                   context_.queue, {.pace = pace, .seconds = pass_.timing.seconds, .warms_up = pass_.timing.warms_up},
                   [&](size_t number) -> Result<void> {
                     const uint64_t choice = number % choices * top_k * sizeof(uint32_t);
                     context_.queue.run_experts({.table = table.get(),
                                                 .x = routed.x,
                                                 .ids = routed.ids.at(choice),
                                                 .weights = routed.weights,
                                                 .top_k = top_k,
                                                 .scratch = {.buffer = scratch.get()},
                                                 .y = routed.y});
                     return {};
                   },
                   stop_));
    const double of_token = static_cast<double>(config_.top_k) / top_k;
    times.experts *= of_token;
    const std::set<uint32_t> distinct(routes.begin(), routes.end());
    times.distinct = pass_.rows == 1 ? config_.top_k : of_token * static_cast<double>(distinct.size());
    times.expert_bytes = static_cast<double>(is_host ? like.slot.slot_bytes : layout.expert_bytes);
    return times;
  }

  /// A layer's input and output, and the experts that it is routed to.
  struct Routed {
    std::unique_ptr<kernels::Buffer> memory;
    kernels::Rows x, y;
    kernels::Slice ids, weights;
  };
  Result<Routed> route(std::span<const uint32_t> routes) {
    ScratchPlan plan;
    const uint64_t x = plan.add(uint64_t{pass_.rows} * config_.hidden);
    const uint64_t y = plan.add(uint64_t{pass_.rows} * config_.hidden);
    const uint64_t ids = plan.add(routes.size());
    const uint64_t weights = plan.add(uint64_t{pass_.rows} * config_.top_k);
    Routed routed;
    TRY_ASSIGN(routed.memory, zeros(context_, plan.size_bytes()));
    routed.x = rows_in(*routed.memory, x, pass_.rows, config_.hidden);
    routed.y = rows_in(*routed.memory, y, pass_.rows, config_.hidden);
    routed.ids = {.buffer = routed.memory.get(), .offset_bytes = ids};
    routed.weights = {.buffer = routed.memory.get(), .offset_bytes = weights};
    context_.queue.upload(routed.ids, std::as_bytes(routes));
    context_.queue.synchronize();
    return routed;
  }

  // Times a part of the head's rows, if all of them take too much memory.
  Result<double> time_head() {
    TRY_ASSIGN(const format::StoredMatrix head,
               format::find_matrix(context_.access.catalogue(), config_.head_name(), config_.vocab, config_.hidden,
                                   context_.quantization));
    kernels::Weight weight{head.form};
    const uint64_t row_bytes = kernels::code_bytes(weight.coding, config_.hidden);
    weight.out = static_cast<uint32_t>(copies_of(context_.device, row_bytes, config_.vocab));
    ScratchPlan plan;
    const uint64_t x = plan.add(config_.hidden);
    const uint64_t y = plan.add(weight.out);
    std::array<uint64_t, kernels::kPlanes> places{};
    for (size_t i = 0; i < places.size(); ++i)
      places[i] = plan.add(ceil_div(kernels::plane_size(weight, i).bytes, sizeof(float)));
    TRY_ASSIGN(const auto scratch, zeros(context_, plan.size_bytes()));
    for (size_t i = 0; i < places.size(); ++i) {
      if (kernels::plane_size(weight, i).bytes != 0)
        weight.planes[i] = {.buffer = scratch.get(), .offset_bytes = places[i]};
    }
    TRY_ASSIGN(
        const double part,
        seconds_a_turn(
            context_.queue, {.pace = Pace::awaited, .seconds = pass_.timing.seconds, .warms_up = pass_.timing.warms_up},
            [&](size_t) -> Result<void> {
              context_.queue.linear(weight, rows_in(*scratch, x, 1, config_.hidden),
                                    rows_in(*scratch, y, 1, weight.out));
              return {};
            },
            stop_));
    return part * config_.vocab / weight.out;
  }

  const LoadContext& context_;
  const ModelConfig& config_;
  ModelOptions options_;
  TrialPass pass_;
  const std::stop_token& stop_;
};

}  // namespace

Result<ComputeTimes> time_compute(const LoadContext& context, const ModelConfig& config, const ModelOptions& options,
                                  const TrialPass& pass, const std::stop_token& stop) {
  return Trial(context, config, options, pass, stop).run();
}

Result<ComputeTimes> time_experts(const LoadContext& context, const ModelConfig& config, const ModelOptions& options,
                                  const TrialPass& pass, const std::stop_token& stop) {
  return Trial(context, config, options, pass, stop).run_experts();
}

}  // namespace dspack::runtime
