#include "tests/bench/tiers_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "format/base/seconds.h"
#include "runtime/experts/eviction_policy.h"
#include "runtime/weights/scratch.h"
#include "tests/bench/cuda_bench_weights.h"

namespace dspack::bench {
namespace {

using kernels::Rows;
using kernels::Slice;
using runtime::Phase;
using runtime::PrefetchMode;
using runtime::rows_of;
using runtime::StreamedStore;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kRouteSeed = 1;
constexpr uint64_t kPromptSeed = 2;
constexpr format::BlockSize kBlock{128, 128};

LayerId layer_of(uint32_t index) {
  return LayerId(index);
}

void subtract(runtime::CacheCounts& now, const runtime::CacheCounts& before) {
  now.hits -= before.hits;
  now.late -= before.late;
  now.missed -= before.missed;
  now.evictions -= before.evictions;
  now.waiting_seconds -= before.waiting_seconds;
  now.prefetches -= before.prefetches;
  now.prefetched_bytes -= before.prefetched_bytes;
  now.useful_prefetches -= before.useful_prefetches;
  now.useful_bytes -= before.useful_bytes;
  now.wasted_bytes -= before.wasted_bytes;
}

runtime::VramPhaseStats difference(runtime::VramPhaseStats now, const runtime::VramPhaseStats& before) {
  subtract(now, before);
  now.moved -= before.moved;
  now.moved_bytes -= before.moved_bytes;
  now.computed -= before.computed;
  now.computed_bytes -= before.computed_bytes;
  now.promoted -= before.promoted;
  now.promoted_bytes -= before.promoted_bytes;
  now.returned -= before.returned;
  now.returned_bytes -= before.returned_bytes;
  return now;
}

runtime::PhaseStats difference(runtime::PhaseStats now, const runtime::PhaseStats& before) {
  subtract(now, before);
  now.misses[0] -= before.misses[0];
  now.bytes[0] -= before.bytes[0];
  return now;
}

}  // namespace

class PinnedMemory::Lent final : public kernels::Buffer {
 public:
  Lent(PinnedMemory& owner, std::unique_ptr<kernels::Buffer> buffer) : owner_(owner), buffer_(std::move(buffer)) {}
  ~Lent() override { owner_.free_.emplace(buffer_->size_bytes(), std::move(buffer_)); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  [[nodiscard]] uint64_t size_bytes() const override { return buffer_->size_bytes(); }
  [[nodiscard]] std::span<std::byte> host() override { return buffer_->host(); }

 private:
  PinnedMemory& owner_;
  std::unique_ptr<kernels::Buffer> buffer_;
};

Result<std::unique_ptr<kernels::Buffer>> PinnedMemory::take(uint64_t bytes) {
  std::unique_ptr<kernels::Buffer> buffer;
  if (const auto found = free_.find(bytes); found != free_.end()) {
    buffer = std::move(found->second);
    free_.erase(found);
  } else {
    const auto start = Clock::now();
    TRY_ASSIGN(buffer, device_.allocate_host(bytes));
    seconds_ += seconds_since(start);
    bytes_ += bytes;
  }
  return std::unique_ptr<kernels::Buffer>(std::make_unique<Lent>(*this, std::move(buffer)));
}

TierRunner::TierRunner(kernels::Device& device, kernels::Device& host, GeneratedExperts& experts, const TierWork& work)
    : device_(device),
      host_(host),
      experts_(experts),
      work_(work),
      queue_(device.make_queue()),
      forecast_word_(required(device.allocate_host(sizeof(uint32_t)))),
      memory_(device, *queue_),
      pinned_(device) {
  const RouteShape& routes = work_.shape.routes;
  // A pass that meets every expert, and the prompt.
  const uint32_t rows = std::max(work_.prompt, routes.experts);
  x_ = memory_.rows(rows, work_.shape.hidden);
  y_ = memory_.rows(rows, work_.shape.hidden);
  ids_ = memory_.uninitialised(uint64_t{routes.layers} * rows * routes.top_k * sizeof(uint32_t));
  const std::vector<float> shares(size_t{rows} * routes.top_k, 1.0F / static_cast<float>(routes.top_k));
  weights_ = memory_.upload(std::as_bytes(std::span(shares)));
  make_weights();
}

void TierRunner::make_weights() {
  const uint32_t hidden = work_.shape.hidden, inner = work_.shape.inner;
  const auto weight = [&](uint32_t out, uint32_t in, Dtype dtype) {
    return weight_of({.name = "", .out = out, .in = in, .dtype = dtype}, memory_.numbers(dtype, uint64_t{out} * in),
                     dtype == Dtype::f8_e4m3 ? scales(memory_, out, in) : Slice{});
  };
  hidden_row_ = memory_.rows(1, hidden);
  inner_row_ = memory_.rows(1, inner);
  shared_in_ = weight(inner, hidden, Dtype::f8_e4m3);
  shared_out_ = weight(hidden, inner, Dtype::f8_e4m3);
  if (work_.attention_seconds <= 0) return;
  attention_weight_ = weight(hidden, hidden, Dtype::bf16);
  constexpr uint32_t kLaunches = 16;
  attention_launches_ = kLaunches;
  attention();
  const auto begin = queue_->mark();
  attention();
  const auto end = queue_->mark();
  queue_->synchronize();
  attention_launch_seconds_ = end->seconds_since(*begin) / kLaunches;
  attention_launches_ =
      static_cast<uint32_t>(std::lround(std::max(1.0, work_.attention_seconds / attention_launch_seconds_)));
}

void TierRunner::attention() {
  if (work_.attention_seconds <= 0) return;
  for (uint32_t i = 0; i < attention_launches_; ++i)
    queue_->linear(attention_weight_, rows_of(x_, 0, 1), hidden_row_);
}

void TierRunner::shared_expert() {
  queue_->linear(shared_in_, rows_of(x_, 0, 1), inner_row_);
  queue_->linear(shared_in_, rows_of(x_, 0, 1), inner_row_);
  queue_->linear(shared_out_, inner_row_, hidden_row_);
}

std::set<LayerId> TierRunner::layers() const {
  std::set<LayerId> all;
  for (uint32_t i = 0; i < work_.shape.routes.layers; ++i)
    all.insert(layer_of(i));
  return all;
}

std::unique_ptr<StreamedStore> TierRunner::make_store(uint64_t slots, PrefetchMode prefetch) {
  const ModelShape& shape = work_.shape;
  return required(StreamedStore::make(
      host_, experts_,
      {.shape = {.hidden = shape.hidden, .expert_inner = shape.inner, .quantization = {.block = kBlock}},
       .layers = layers(),
       .slots = slots,
       .least_slots = shape.routes.top_k + 2,
       .policy = required(runtime::find_policy(runtime::kDefaultPolicy)),
       .prefetch = prefetch,
       .memory = &pinned_}));
}

std::unique_ptr<runtime::RoutedExperts> TierRunner::make_executor(StreamedStore& store, const std::set<LayerId>& layers,
                                                                  const TierCase& what) {
  const ModelShape& shape = work_.shape;
  const runtime::ExecutorShape sizes{.hidden = shape.hidden,
                                     .expert_inner = shape.inner,
                                     .experts = shape.routes.experts,
                                     .top_k = shape.routes.top_k,
                                     .wave_tokens = x_.rows};
  runtime::DeviceCacheOptions tier;
  tier.experts.shape = {.hidden = shape.hidden, .expert_inner = shape.inner, .quantization = {.block = kBlock}};
  tier.experts.experts = shape.routes.experts;
  tier.experts.layers = layers;
  tier.slots = what.vram;
  tier.policy = required(runtime::find_policy(runtime::kDefaultPolicy));
  tier.prefetch = what.prefetch;
  tier.returns = what.miss != runtime::MissMode::compute;
  return required(runtime::RoutedExperts::make_tiered({.device = device_, .queue = *queue_, .host = &host_},
                                                      experts_.checkpoint(), store, sizes, tier, {.mode = what.miss}));
}

TierRunner::Tiers TierRunner::make_tiers(const TierCase& what) {
  Tiers tiers;
  if (what.ram >= work_.shape.experts()) {
    // One for all cases: nothing ever leaves it, so it does not matter what the cases before have wanted.
    if (whole_ == nullptr) whole_ = make_store(work_.shape.experts(), PrefetchMode::off);
    tiers.store = whole_.get();
  } else {
    whole_.reset();
    tiers.own_store = make_store(what.ram, what.prefetch);
    tiers.store = tiers.own_store.get();
  }
  tiers.executor = make_executor(*tiers.store, layers(), what);
  tiers.routes = std::make_unique<RouteGenerator>(work_.shape.routes, *work_.profile, kRouteSeed);
  warm_up(tiers);
  return tiers;
}

// From memory whatever is measured afterwards: what counts is what lies where when that begins.
void TierRunner::warm_up(Tiers& tiers) {
  experts_.read_from(ExpertSource::memory);
  if (tiers.own_store == nullptr) {
    const RouteShape& routes = work_.shape.routes;
    const uint32_t rows = (routes.experts + routes.top_k - 1) / routes.top_k;
    std::vector<uint16_t> every;
    for (uint32_t token = 0; token < rows; ++token)
      for (uint32_t i = 0; i < routes.layers * routes.top_k; ++i)
        every.push_back(static_cast<uint16_t>((token * routes.top_k + i % routes.top_k) % routes.experts));
    upload_routes(every, rows);
    prefill_layers(*tiers.executor, rows, routes.layers);
  }
  for (uint32_t i = 0; i < work_.warm_tokens; ++i)
    decode_token(tiers);
  queue_->synchronize();
  if (tiers.own_store != nullptr) experts_.read_from(ExpertSource::disk);
}

// Of tokens one after the other, as the generator gives them: to each layer its own, [rows, top_k].
void TierRunner::upload_routes(std::span<const uint16_t> routes, uint32_t rows) {
  const RouteShape& shape = work_.shape.routes;
  std::vector<uint32_t> ids(size_t{shape.layers} * rows * shape.top_k);
  for (uint32_t token = 0; token < rows; ++token)
    for (uint32_t layer = 0; layer < shape.layers; ++layer)
      std::copy_n(routes.begin() + (token * shape.layers + layer) * shape.top_k, shape.top_k,
                  ids.begin() + (layer * rows + token) * shape.top_k);
  queue_->upload(ids_, std::as_bytes(std::span(ids)));
  queue_->synchronize();
}

runtime::RoutedTokens TierRunner::routed(uint32_t layer, uint32_t rows) const {
  const uint64_t at = uint64_t{layer} * rows * work_.shape.routes.top_k * sizeof(uint32_t);
  return {.layer = layer_of(layer), .x = rows_of(x_, 0, rows), .ids = ids_.at(at), .weights = weights_};
}

// So many as the model's own predictor names: three quarters of the top k. A wrong one is any expert.
std::vector<ExpertId> TierRunner::forecast(Tiers& tiers, std::span<const uint16_t> next) {
  std::vector<ExpertId> expected;
  for (size_t i = 0; i < next.size() * 3 / 4; ++i) {
    const double chance = static_cast<double>(tiers.random() % 1000) / 1000;
    const auto other = static_cast<uint32_t>(tiers.random() % work_.shape.routes.experts);
    const ExpertId expert(chance < work_.forecast_right ? next[i] : other);
    if (std::ranges::find(expected, expert) == expected.end()) expected.push_back(expert);
  }
  return expected;
}

void TierRunner::decode_token(Tiers& tiers) {
  const RouteShape& shape = work_.shape.routes;
  const std::span<const uint16_t> routes = tiers.routes->next();
  upload_routes(routes, 1);
  runtime::RoutedExperts& executor = *tiers.executor;
  executor.begin_pass({.phase = Phase::decode, .rows = 1, .draft_rows = 0});
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    attention();
    runtime::RoutedTokens tokens = routed(layer, 1);
    tokens.meanwhile = [&] {
      shared_expert();
      if (layer + 1 == shape.layers || !executor.wants_forecast()) return;
      queue_->copy({.buffer = forecast_word_.get(), .offset_bytes = 0}, ids_, sizeof(uint32_t));
      executor.expect(layer_of(layer + 1),
                      {.computed = queue_->mark(), .experts = [&tiers, &shape, this, routes, next = layer + 1] {
                         return forecast(tiers, routes.subspan(next * shape.top_k, shape.top_k));
                       }});
    };
    require(executor.run(tokens, rows_of(y_, 0, 1), {}));
  }
  queue_->synchronize();
}

void TierRunner::prefill_layers(runtime::RoutedExperts& executor, uint32_t rows, uint32_t layers) {
  executor.begin_pass({.phase = Phase::prefill, .rows = rows, .draft_rows = 0});
  for (uint32_t layer = 0; layer < layers; ++layer)
    require(executor.run(routed(layer, rows), rows_of(y_, 0, rows), {}));
  queue_->synchronize();
}

Round TierRunner::measured(Tiers& tiers, Phase phase, const std::function<void()>& run) {
  const auto which = static_cast<size_t>(phase);
  const runtime::ExpertStoreStats before = tiers.executor->stats();
  const runtime::DecodeBound bound = tiers.executor->decode_bound();
  const auto start = Clock::now();
  run();
  Round round{.seconds = seconds_since(start)};
  const runtime::ExpertStoreStats after = tiers.executor->stats();
  round.bound = tiers.executor->decode_bound().since(bound);
  round.vram = difference(after.vram->phases[which], before.vram->phases[which]);
  round.ram = difference(after.phases[which], before.phases[which]);
  round.link_rate = after.vram->link_bytes_per_second;
  round.cpu_rate = after.vram->cpu_bytes_per_second;
  return round;
}

std::vector<Round> TierRunner::decode(const TierCase& what) {
  Tiers tiers = make_tiers(what);
  std::vector<Round> rounds;
  for (uint32_t i = 0; i < work_.rounds; ++i) {
    rounds.push_back(measured(tiers, Phase::decode, [&] {
      for (uint32_t token = 0; token < work_.tokens; ++token)
        decode_token(tiers);
    }));
  }
  return rounds;
}

std::vector<Round> TierRunner::prefill(const TierCase& what, uint32_t rounds) {
  Tiers tiers = make_tiers(what);
  std::vector<Round> measurements;
  RouteGenerator generator(work_.shape.routes, *work_.profile, kPromptSeed);
  for (uint32_t i = 0; i < rounds; ++i) {
    std::vector<uint16_t> routes;
    for (uint32_t token = 0; token < work_.prompt; ++token) {
      const auto next = generator.next();
      routes.insert(routes.end(), next.begin(), next.end());
    }
    upload_routes(routes, work_.prompt);
    measurements.push_back(measured(tiers, Phase::prefill,
                                    [&] { prefill_layers(*tiers.executor, work_.prompt, work_.shape.routes.layers); }));
  }
  return measurements;
}

double TierRunner::prefill_compute_seconds() {
  const RouteShape& shape = work_.shape.routes;
  experts_.read_from(ExpertSource::memory);
  const auto store = make_store(shape.experts, PrefetchMode::off);
  const auto executor = make_executor(*store, {layer_of(0)}, {.vram = shape.experts});
  RouteGenerator generator(shape, *work_.profile, kPromptSeed);
  std::vector<uint16_t> routes;
  for (uint32_t token = 0; token < work_.prompt; ++token) {
    const auto next = generator.next();
    routes.insert(routes.end(), next.begin(), next.end());
  }
  upload_routes(routes, work_.prompt);
  prefill_layers(*executor, work_.prompt, 1);  // copies them
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t i = 0; i < work_.rounds; ++i) {
    const auto start = Clock::now();
    prefill_layers(*executor, work_.prompt, 1);
    least = std::min(least, seconds_since(start));
  }
  return least * shape.layers;
}

double TierRunner::link_rate() {
  const uint64_t bytes = work_.shape.expert_bytes();
  constexpr uint32_t kCopies = 16;
  const auto from = required(pinned_.take(bytes));
  const Slice to = memory_.uninitialised(bytes);
  const auto copy = [&] { queue_->upload(to, from->host()); };
  std::ranges::fill(from->host(), std::byte{1});
  copy();
  const auto begin = queue_->mark();
  for (uint32_t i = 0; i < kCopies; ++i)
    copy();
  const auto end = queue_->mark();
  queue_->synchronize();
  return static_cast<double>(bytes * kCopies) / end->seconds_since(*begin);
}

double TierRunner::disk_rate() {
  const auto into = required(pinned_.take(runtime::kLocalBlockBytes * runtime::kLocalDepth));
  std::ranges::fill(into->host(), std::byte{0});
  return experts_.disk_rate(into->host());
}

}  // namespace dspack::bench
