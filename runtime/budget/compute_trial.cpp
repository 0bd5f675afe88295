#include "runtime/budget/compute_trial.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "format/base/checked.h"
#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/grouped_executor.h"
#include "runtime/experts/slot_plan.h"
#include "runtime/model/names.h"

namespace dspack::runtime {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTrialSeconds = 0.2;
constexpr size_t kLeastTurns = 3;

/// Memory that is really there: a page that was never written is read from nowhere.
Result<std::unique_ptr<kernels::Buffer>> zeros(kernels::Device& device, uint64_t bytes) {
  TRY_ASSIGN(auto buffer, device.allocate(bytes));
  const std::span<std::byte> memory = kernels::host_bytes(*buffer);
  std::memset(memory.data(), 0, memory.size());
  return buffer;
}

/// Copies of `bytes` that make memory the place where they come from, as in a pass of `in_a_pass` such pieces.
uint64_t copies_of(uint64_t bytes, uint64_t in_a_pass) {
  return std::clamp<uint64_t>(kTrialBytes / std::max<uint64_t>(1, bytes), 1, std::max<uint64_t>(1, in_a_pass));
}

// Median seconds of one turn; the first one warms up.
template <class Turn>
Result<double> median_seconds(Turn turn, const std::stop_token& stop) {
  TRY(turn());
  std::vector<double> seconds;
  const auto start = Clock::now();
  while (seconds.size() < kLeastTurns || std::chrono::duration<double>(Clock::now() - start).count() < kTrialSeconds) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
    const auto before = Clock::now();
    TRY(turn());
    seconds.push_back(std::chrono::duration<double>(Clock::now() - before).count());
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::ranges::nth_element(seconds, middle);
  return *middle;
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

/// Every expert is in memory: one of a few that take turns.
class BlankExperts final : public ExpertStore {
 public:
  static Result<std::unique_ptr<BlankExperts>> make(kernels::Device& device, const SlotPlan& plan, uint64_t copies) {
    auto store = std::unique_ptr<BlankExperts>(new BlankExperts);
    for (uint64_t i = 0; i < copies; ++i) {
      TRY_ASSIGN(auto memory, zeros(device, plan.slot_bytes));
      store->weights_.push_back(weights_in(plan, *memory));
      store->memory_.push_back(std::move(memory));
    }
    return store;
  }

  void begin_pass(const ExpertPass& pass) override { pass_ = pass; }
  [[nodiscard]] const ExpertPass& pass() const override { return pass_; }
  void accept_drafts(uint32_t /*rows*/) override {}
  [[nodiscard]] Result<std::unique_ptr<ExpertRequest>> request(LayerId /*layer*/,
                                                               std::vector<ExpertDemand> /*demands*/) override {
    return std::unique_ptr<ExpertRequest>(std::make_unique<Request>(*this));
  }
  void expect(LayerId /*layer*/, std::span<const ExpertId> /*experts*/) override {}

 private:
  BlankExperts() = default;
  class Request final : public ExpertRequest {
   public:
    explicit Request(BlankExperts& store) : store_(store) {}
    [[nodiscard]] Result<ExpertLease> next(const std::stop_token& /*stop*/) override {
      return ExpertLease(taken_++, store_.weights_[store_.turn_++ % store_.weights_.size()]);
    }
    [[nodiscard]] bool is_ready() override { return true; }

   private:
    BlankExperts& store_;
    size_t taken_ = 0;
  };

  ExpertPass pass_;
  std::vector<std::unique_ptr<kernels::Buffer>> memory_;
  std::vector<ExpertWeights> weights_;
  size_t turn_ = 0;
};

class Trial {
 public:
  Trial(const LoadContext& context, const ModelConfig& config, ModelOptions options, const TrialPass& pass,
        const std::stop_token& stop)
      : context_(context), config_(config), options_(std::move(options)), pass_(pass), stop_(stop) {
    options_.max_rows = pass.rows;
    options_.wave_rows = std::min(options_.wave_rows, pass.rows);
    options_.context = pass.position + pass.rows;
  }

  Result<ComputeTimes> run() {
    ComputeTimes times;
    TRY_ASSIGN(times.dense_layer, time_layer(false));
    TRY_ASSIGN(times.moe_layer, time_layer(true));
    if (times.moe_layer > 0) TRY(time_experts(times));
    TRY_ASSIGN(times.head, time_head());
    return times;
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
    TRY_ASSIGN(const WeightGroup needs, find_layer(context_, config_, layers.front(), first));
    std::vector<std::unique_ptr<LayerWeights>> copies;
    for (uint64_t i = 0; i < copies_of(needs.size_bytes(), layers.size()); ++i) {
      auto weights = std::make_unique<LayerWeights>();
      TRY_ASSIGN(WeightGroup group, find_layer(context_, config_, layers.front(), *weights));
      TRY_ASSIGN(weights->memory, zeros(context_.device, group.size_bytes()));
      group.bind(*weights->memory);
      copies.push_back(std::move(weights));
    }
    ScratchPlan plan;
    const uint64_t hidden = plan.add(uint64_t{pass_.rows} * config_.hidden);
    const uint64_t table = plan.add(uint64_t{options_.context} * config_.rope_dim);
    const LayerRunner runner(
        config_, {.form = options_.attention, .context = options_.context, .cache_dtype = options_.kv_dtype},
        options_.max_rows, options_.wave_rows, plan);
    TRY_ASSIGN(const auto scratch, zeros(context_.device, plan.size_bytes()));
    TRY_ASSIGN(KvCache cache,
               KvCache::make(context_.device, 1, options_.context, config_.cache_shape(), options_.kv_dtype));
    context_.queue.synchronize();
    std::memset(kernels::host_bytes(*cache.layer(0).data.buffer).data(), 0, cache.size_bytes());
    NoExperts executor;
    size_t turn = 0;
    return median_seconds(
        [&]() -> Result<void> {
          TRY(runner.run({.queue = context_.queue, .scratch = *scratch, .executor = executor, .stop = stop_},
                         *copies[turn++ % copies.size()],
                         {.hidden = rows_in(*scratch, hidden, pass_.rows, config_.hidden),
                          .cache = cache.layer(0),
                          .position = {.first = pass_.position},
                          .cos_sin = {.buffer = scratch.get(), .offset_bytes = table}}));
          context_.queue.synchronize();
          return {};
        },
        stop_);
  }

  // Ids of every row: top_k different ones, all alike likely.
  std::vector<uint32_t> random_routes(std::mt19937& random) const {
    std::vector<uint32_t> ids;
    std::vector<uint32_t> all(config_.experts);
    std::iota(all.begin(), all.end(), 0U);
    for (uint32_t row = 0; row < pass_.rows; ++row) {
      std::ranges::shuffle(all, random);
      ids.insert(ids.end(), all.begin(), all.begin() + config_.top_k);
    }
    return ids;
  }

  Result<void> time_experts(ComputeTimes& times) {
    const std::vector<LayerId> layers = layers_of(true);
    const format::Checkpoint& checkpoint = context_.files.checkpoint();
    const auto any = checkpoint.experts().lower_bound({.layer = layers.front(), .expert = ExpertId(0)});
    if (any == checkpoint.experts().end()) return Error{ErrorKind::not_found, "the checkpoint holds no routed expert"};
    TRY_ASSIGN(
        const SlotPlan slot,
        plan_slot(checkpoint, any->first,
                  {.hidden = config_.hidden, .expert_inner = config_.expert_inner, .fp8_block = config_.fp8_block}));
    times.expert_bytes = static_cast<double>(slot.slot_bytes);
    const uint64_t in_a_pass =
        std::min<uint64_t>(layers.size() * uint64_t{config_.top_k} * pass_.rows, checkpoint.experts().size());
    TRY_ASSIGN(const auto store, BlankExperts::make(context_.device, slot, copies_of(slot.slot_bytes, in_a_pass)));
    TRY_ASSIGN(const auto executor, GroupedExecutor::make(context_.device, context_.queue, *store,
                                                          {.hidden = config_.hidden,
                                                           .expert_inner = config_.expert_inner,
                                                           .experts = config_.experts,
                                                           .top_k = config_.top_k,
                                                           .wave_tokens = pass_.rows}));
    ScratchPlan plan;
    const uint64_t x = plan.add(uint64_t{pass_.rows} * config_.hidden);
    const uint64_t y = plan.add(uint64_t{pass_.rows} * config_.hidden);
    const uint64_t ids = plan.add(uint64_t{pass_.rows} * config_.top_k);
    const uint64_t weights = plan.add(uint64_t{pass_.rows} * config_.top_k);
    TRY_ASSIGN(const auto scratch, zeros(context_.device, plan.size_bytes()));
    std::mt19937 random(1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same routes every time
    const std::vector<uint32_t> routes = random_routes(random);
    times.distinct = static_cast<double>(std::set<uint32_t>(routes.begin(), routes.end()).size());
    context_.queue.upload({.buffer = scratch.get(), .offset_bytes = ids}, std::as_bytes(std::span(routes)));
    executor->begin_pass({.phase = pass_.rows == 1 ? Phase::decode : Phase::prefill, .rows = pass_.rows});
    TRY_ASSIGN(times.experts, median_seconds(
                                  [&] {
                                    return executor->run(
                                        {.layer = layers.front(),
                                         .x = rows_in(*scratch, x, pass_.rows, config_.hidden),
                                         .ids = {.buffer = scratch.get(), .offset_bytes = ids},
                                         .weights = {.buffer = scratch.get(), .offset_bytes = weights}},
                                        rows_in(*scratch, y, pass_.rows, config_.hidden), stop_);
                                  },
                                  stop_));
    return {};
  }

  // A part of the head's rows, where all of them are much memory.
  Result<double> time_head() {
    TRY_ASSIGN(const LinearSource source, find_linear(context_.files.checkpoint(), names::kHead, config_.vocab,
                                                      config_.hidden, context_.fp8_block));
    kernels::Weight weight = source.form;
    const uint64_t row_bytes = uint64_t{config_.hidden} * (bits_of(weight.dtype) / 8);
    weight.out = static_cast<uint32_t>(std::clamp<uint64_t>(kTrialBytes / row_bytes, 1, config_.vocab));
    ScratchPlan plan;
    const uint64_t x = plan.add(config_.hidden);
    const uint64_t y = plan.add(weight.out);
    const uint64_t scale = plan.add(source.scale_values());
    const uint64_t data = plan.add(ceil_div(weight.out * row_bytes, sizeof(float)));
    TRY_ASSIGN(const auto scratch, zeros(context_.device, plan.size_bytes()));
    weight.data = {.buffer = scratch.get(), .offset_bytes = data};
    if (source.scale != nullptr) weight.scale = {.buffer = scratch.get(), .offset_bytes = scale};
    TRY_ASSIGN(const double part, median_seconds(
                                      [&]() -> Result<void> {
                                        context_.queue.linear(weight, rows_in(*scratch, x, 1, config_.hidden),
                                                              rows_in(*scratch, y, 1, weight.out));
                                        context_.queue.synchronize();
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

}  // namespace dspack::runtime
