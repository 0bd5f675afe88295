#include "runtime/experts/routed_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "format/base/size.h"
#include "kernels/cpu/cpu_device.h"
#include "runtime/experts/backends/cpu_backend.h"
#include "runtime/experts/backends/device_backend.h"
#include "runtime/experts/backends/further_device.h"
#include "runtime/experts/expert_filling.h"
#include "runtime/experts/pinned_slots.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {

namespace {

constexpr uint64_t kPartAlignment = 256;
// Tokens per wave if resident experts are traced: needs little memory beside the run's. V3: 59 MB.
constexpr uint32_t kTracedTokens = 256;

uint64_t kernel_scratch(const kernels::Device& device, const ExecutorShape& shape, ExpertPlacement placement) {
  return round_up(device.experts_scratch_bytes({.hidden = shape.hidden,
                                                .inner = shape.expert_inner,
                                                .experts = shape.experts,
                                                .top_k = shape.top_k,
                                                .rows = shape.wave_tokens,
                                                .parts_only = placement != ExpertPlacement::resident}),
                  kPartAlignment);
}

uint64_t routes_bytes(const ExecutorShape& shape) {
  return uint64_t{shape.wave_tokens} * shape.top_k * sizeof(uint32_t);
}

uint64_t parts_bytes(const ExecutorShape& shape, uint32_t tokens) {
  return uint64_t{tokens} * shape.top_k * shape.hidden * sizeof(float);
}

// In compute mode, which experts are prefetched, and when, decides which backend computes an expert.
PrefetchMode device_prefetch(const RoutedExperts::Options& options) {
  const bool must_repeat = options.miss.is_deterministic && options.miss.mode == MissMode::compute;
  return must_repeat ? PrefetchMode::off : options.store.prefetch;
}

}  // namespace

Result<std::unique_ptr<RoutedExperts>> RoutedExperts::make(const Target& target, Tier& tier, const Options& options,
                                                           const std::stop_token& stop) {
  const DeviceExperts experts{
      .shape = options.store.shape, .experts = options.shape.experts, .layers = options.store.layers};
  if (options.placement == ExpertPlacement::resident) {
    std::unique_ptr<RoutedExperts> made(new RoutedExperts(target, options.shape));
    TRY_ASSIGN(made->cache_, DeviceCache::load(target.device, tier, experts, options.progress, stop));
    TRY(made->allocate(ExpertPlacement::resident));
    made->backends_.push_back(
        std::make_unique<DeviceBackend>(target.queue, kernels::Slice{.buffer = made->scratch_.get(), .offset_bytes = 0},
                                        *made->cache_, options.miss, DeviceBackend::Share{}));
    return made;
  }
  StreamedStoreOptions with = options.store;
  if (options.placement == ExpertPlacement::streamed) {
    TRY_ASSIGN(auto store, StreamedStore::make(target.device, tier, with));
    TRY_ASSIGN(auto made, stream(target, *store, options.shape));
    made->own_store_ = std::move(store);
    return made;
  }
  DSPACK_CHECK(target.host != nullptr, "tiers without a host");
  auto pinned = std::make_unique<PinnedSlots>(target.device);
  with.memory = pinned.get();
  TRY_ASSIGN(auto store, StreamedStore::make(*target.host, tier, with));
  TRY_ASSIGN(auto made, make_tiered(target, tier.checkpoint(), *store, options.shape,
                                    {.experts = experts,
                                     .slots = options.vram_slots,
                                     .policy = options.store.policy,
                                     .prefetch = device_prefetch(options),
                                     .returns = options.miss.effective() != MissMode::compute},
                                    options.miss));
  made->pinned_ = std::move(pinned);
  made->own_store_ = std::move(store);
  if (options.fills_devices) TRY(fill_devices(*made->store_, made->backends_, experts, options.progress, stop));
  return made;
}

Result<std::unique_ptr<RoutedExperts>> RoutedExperts::stream(const Target& target, ExpertStore& store,
                                                             const ExecutorShape& shape) {
  DSPACK_CHECK(target.device.is_host(), "experts are computed in the host's memory");
  std::unique_ptr<RoutedExperts> made(new RoutedExperts(target, shape));
  made->store_ = &store;
  TRY(made->allocate(ExpertPlacement::streamed));
  made->backends_.push_back(
      std::make_unique<CpuBackend>(target.queue, kernels::Slice{.buffer = made->scratch_.get(), .offset_bytes = 0}));
  return made;
}

Result<std::unique_ptr<RoutedExperts>> RoutedExperts::make_tiered(const Target& target,
                                                                  const format::Checkpoint& checkpoint,
                                                                  ExpertStore& store, const ExecutorShape& shape,
                                                                  const DeviceCacheOptions& cache,
                                                                  const MissOptions& miss) {
  std::unique_ptr<RoutedExperts> made(new RoutedExperts(target, shape));
  made->store_ = &store;
  DeviceBackend::Share share;
  if (!target.further.empty()) {
    std::vector<uint64_t> slots = {cache.slots};
    std::ranges::transform(target.further, std::back_inserter(slots), &Target::Further::vram_slots);
    TRY_ASSIGN(made->homes_, ExpertHomes::find(checkpoint, cache.experts, slots));
    share.homes = &made->homes_;
  }
  TRY_ASSIGN(made->cache_, DeviceCache::make(target.device, checkpoint, store, share.own(cache, cache.slots)));
  TRY(made->allocate(ExpertPlacement::tiered));
  made->backends_.push_back(std::make_unique<DeviceBackend>(
      target.queue, kernels::Slice{.buffer = made->scratch_.get(), .offset_bytes = 0}, *made->cache_, miss, share));
  for (const Target::Further& further : target.further) {
    share.number = made->backends_.size();
    TRY_ASSIGN(auto one, FurtherDevice::make({.device = target.device, .queue = target.queue}, *further.device, share,
                                             checkpoint, store, shape, share.own(cache, further.vram_slots), miss));
    made->backends_.push_back(std::move(one));
  }
  TRY_ASSIGN(auto beside, CpuBackend::beside(target.device, target.queue, *target.host, shape, miss));
  made->backends_.push_back(std::move(beside));
  return made;
}

Result<void> RoutedExperts::allocate(ExpertPlacement placement) {
  DSPACK_CHECK(shape_.wave_tokens > 0, "an executor without room");
  TRY_ASSIGN(scratch_, target_.device.allocate(scratch_bytes_for(target_.device, shape_, placement)));
  parts_at_ = kernel_scratch(target_.device, shape_, placement);
  TRY_ASSIGN(routes_, target_.device.allocate_host(routes_bytes(shape_)));
  return {};
}

// Work on a device's cache must have run before the cache is destroyed. Resident experts are only read, and the queue
// may hold work of a model that no longer exists.
RoutedExperts::~RoutedExperts() {
  if (!is_resident()) target_.queue.synchronize();
}

uint64_t RoutedExperts::scratch_bytes_for(const kernels::Device& device, const ExecutorShape& shape,
                                          ExpertPlacement placement) {
  return kernel_scratch(device, shape, placement) +
         (placement == ExpertPlacement::resident ? 0 : parts_bytes(shape, shape.wave_tokens));
}

uint64_t RoutedExperts::host_bytes_for(const kernels::Device& host, const ExecutorShape& shape, size_t further) {
  return CpuBackend::bytes_beside(host, shape) + routes_bytes(shape) + further * FurtherDevice::host_bytes_for(shape);
}

uint64_t RoutedExperts::scratch_bytes() const {
  return scratch_->size_bytes() + (tracer_ != nullptr ? tracer_->scratch_bytes() : 0) +
         (traced_parts_ != nullptr ? traced_parts_->size_bytes() : 0);
}

void RoutedExperts::begin_pass(const ExpertPass& pass) {
  settle();
  awaited_.reset();
  pass_ = pass;
  ++passes_[static_cast<size_t>(pass.phase)];
  if (store_ != nullptr) store_->begin_pass(pass);
  for (const auto& backend : backends_)
    backend->begin_pass(pass);
  hearing_.clear();
  for (RouteListener* listener : listeners_) {
    listener->begin_pass(pass);
    if (listener->wants_routes()) hearing_.push_back(listener);
  }
}

void RoutedExperts::accept_drafts(uint32_t rows) {
  if (store_ != nullptr) store_->accept_drafts(rows);
  for (const auto& backend : backends_)
    backend->accept_drafts(rows);
  for (RouteListener* listener : listeners_)
    listener->accept_drafts(rows);
}

MissCounts RoutedExperts::miss_counts() const {
  if (store_ == nullptr) return {};
  if (!backends_.front()->miss_counts()) return store_->miss_counts();
  settle();
  MissCounts counts;
  for (const auto& backend : backends_)
    counts += backend->miss_counts().value_or(MissCounts());
  for (const double seconds : waiting_)
    counts.waiting_seconds += seconds;
  return counts;
}

const DecodeBound& RoutedExperts::decode_bound() const {
  settle();
  return decode_bound_;
}

ExpertStoreStats RoutedExperts::stats() const {
  if (store_ == nullptr) {
    ExpertStoreStats stats = cache_->loading();
    for (size_t phase = 0; phase < kPhases; ++phase)
      stats.phases[phase].passes = passes_[phase];
    return stats;
  }
  settle();
  ExpertStoreStats stats = store_->stats();
  for (const auto& backend : backends_)
    backend->add_to(stats);
  for (size_t phase = 0; stats.vram && phase < kPhases; ++phase)
    stats.vram->phases[phase].waiting_seconds = waiting_[phase];
  return stats;
}

ExpertResidence RoutedExperts::places() const {
  if (is_resident()) return {.device = {}, .host = {}, .is_resident = true};
  ExpertResidence places{.device = {}, .host = store_->held()};
  for (const auto& backend : backends_)
    std::ranges::copy(backend->held(), std::back_inserter(places.device));
  return places;
}

bool RoutedExperts::wants_forecast() const {
  return store_ != nullptr && (store_->wants_forecast() || std::ranges::any_of(backends_, [](const auto& backend) {
                                 return backend->wants_forecast();
                               }));
}

// Announces the demands of the layer's first wave: when the second one comes, the first has used the slots.
void RoutedExperts::announce(LayerId layer, std::span<const uint32_t> ids) {
  if (store_ == nullptr) return;
  std::vector<ExpertDemand> demands;
  const size_t wave = std::min<size_t>(ids.size(), size_t{shape_.wave_tokens} * shape_.top_k);
  for (const RoutedGroup& group : group_by_expert(ids.first(wave), shape_.top_k, 0)) {
    const ExpertKey key{.layer = layer, .expert = group.demand.expert};
    if (std::ranges::none_of(backends_, [&](const auto& backend) { return backend->holds(key); }))
      demands.push_back(group.demand);
  }
  store_->announce(layer, demands);
}

void RoutedExperts::expect(LayerId layer, ExpertForecast forecast) {
  awaited_ = {.layer = layer, .forecast = std::move(forecast)};
  take_forecast();
}

void RoutedExperts::take_forecast() {
  if (!awaited_ || !awaited_->forecast.computed->is_reached()) return;
  const Awaited now = *std::exchange(awaited_, std::nullopt);
  if (!target_.queue.failure()) expect(now.layer, now.forecast.experts());
}

// The host reads expected experts that no memory has, and a device copies those that the host has.
void RoutedExperts::expect(LayerId layer, std::span<const ExpertId> experts) {
  if (store_ == nullptr) return;
  std::vector<ExpertId> absent;
  std::ranges::copy_if(experts, std::back_inserter(absent), [&](ExpertId expert) {
    return std::ranges::none_of(
        backends_, [&](const auto& backend) { return backend->holds({.layer = layer, .expert = expert}); });
  });
  store_->expect(layer, absent);
  for (const auto& backend : backends_)
    backend->expect(layer, absent);
}

Result<void> RoutedExperts::run(const RoutedTokens& tokens, const kernels::Rows& y, const std::stop_token& stop) {
  heard_.clear();
  if (tokens.trace.on()) TRY(begin_trace(tokens));
  if (is_resident() && !tokens.trace.on()) {
    if (!hearing_.empty()) {
      TRY_ASSIGN(heard_, chosen_experts(tokens));
    }
    TRY(run_resident(tokens, y, stop));
  } else if (auto done = run_waves(tokens, y, stop); !done) {
    target_.queue.synchronize();  // enqueued work borrows the caller's memory
    return done;
  }
  for (RouteListener* listener : hearing_)
    TRY(listener->record(tokens.layer, heard_));
  return {};
}

Result<void> RoutedExperts::begin_trace(const RoutedTokens& tokens) {
  if (tracer_ == nullptr) {
    TRY_ASSIGN(tracer_, ExpertTracer::make(target_.device, target_.queue, shape_.hidden, shape_.expert_inner));
  }
  if (is_resident() && traced_parts_ == nullptr) {
    TRY_ASSIGN(traced_parts_,
               target_.device.allocate(parts_bytes(shape_, std::min(shape_.wave_tokens, kTracedTokens))));
  }
  TRY_ASSIGN(const std::vector<uint32_t> chosen, chosen_experts(tokens));
  tracer_->begin_layer(tokens.trace, chosen);
  return {};
}

Result<void> RoutedExperts::run_resident(const RoutedTokens& tokens, const kernels::Rows& y,
                                         const std::stop_token& stop) {
  for (uint32_t first = 0; first < tokens.x.rows; first += shape_.wave_tokens) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
    const uint32_t count = std::min(shape_.wave_tokens, tokens.x.rows - first);
    const uint64_t routed = uint64_t{first} * shape_.top_k * sizeof(float);
    const kernels::ExpertsArgs experts{.table = &cache_->table(tokens.layer),
                                       .x = rows_of(tokens.x, first, count),
                                       .ids = tokens.ids.at(routed),
                                       .weights = tokens.weights.at(routed),
                                       .top_k = shape_.top_k,
                                       .scratch = {.buffer = scratch_.get(), .offset_bytes = 0},
                                       .y = rows_of(y, first, count)};
    if (!tokens.rest) {
      target_.queue.run_experts(experts);
      continue;
    }
    std::optional<kernels::MlpArgs> shared = tokens.rest->shared;
    if (shared) {
      for (kernels::Rows* rows : {&shared->x, &shared->inner, &shared->scratch, &shared->y})
        *rows = rows_of(*rows, first, count);
    }
    target_.queue.add_moe({.experts = experts,
                           .shared = shared ? &*shared : nullptr,
                           .residual = rows_of(tokens.rest->residual, first, count)});
  }
  if (tokens.meanwhile) tokens.meanwhile();
  return {};
}

Result<void> RoutedExperts::run_waves(const RoutedTokens& tokens, const kernels::Rows& y, const std::stop_token& stop) {
  const uint32_t most = is_resident() ? std::min(shape_.wave_tokens, kTracedTokens) : shape_.wave_tokens;
  for (uint32_t first = 0; first < tokens.x.rows; first += most) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
    const uint32_t count = std::min(most, tokens.x.rows - first);
    const uint64_t routed = uint64_t{first} * shape_.top_k * sizeof(float);
    const RoutedTokens wave{.layer = tokens.layer,
                            .x = rows_of(tokens.x, first, count),
                            .ids = tokens.ids.at(routed),
                            .weights = tokens.weights.at(routed),
                            .trace = tokens.trace,
                            .meanwhile = first == 0 ? tokens.meanwhile : nullptr};
    TRY(run_wave(wave, first, rows_of(y, first, count), stop));
  }
  return {};
}

// The device itself writes the ids to host memory: a download could queue up after other copies.
Result<std::vector<uint32_t>> RoutedExperts::chosen_experts(
    const RoutedTokens& tokens, const std::function<void(std::shared_ptr<kernels::Event>)>& meanwhile) {
  std::vector<uint32_t> chosen;
  for (uint32_t first = 0; first < tokens.x.rows; first += shape_.wave_tokens) {
    const uint32_t count = std::min(shape_.wave_tokens, tokens.x.rows - first) * shape_.top_k;
    target_.queue.copy({.buffer = routes_.get(), .offset_bytes = 0},
                       tokens.ids.at(uint64_t{first} * shape_.top_k * sizeof(uint32_t)), count * sizeof(uint32_t));
    const auto there = target_.queue.mark();
    if (meanwhile) meanwhile(there);
    advance();
    while (!there->is_reached() && (advance() || awaited_))
      take_forecast();
    there->wait();
    if (const auto failed = target_.queue.failure()) return *failed;
    const auto* ids = reinterpret_cast<const uint32_t*>(kernels::host_bytes(*routes_).data());
    chosen.insert(chosen.end(), ids, ids + count);
  }
  if (awaited_ && awaited_->layer == tokens.layer) awaited_.reset();  // the routes are known
  for (const uint32_t expert : chosen)
    DSPACK_CHECK(expert < shape_.experts, fmt::format("layer {}: routed to no expert", tokens.layer.value));
  return chosen;
}

bool RoutedExperts::advance() {
  bool has_more = false;
  for (const auto& backend : backends_)
    has_more = backend->advance() || has_more;
  return has_more;
}

Result<void> RoutedExperts::run_wave(const RoutedTokens& tokens, uint32_t first_row, const kernels::Rows& y,
                                     const std::stop_token& stop) {
  const bool is_traced = tokens.trace.on();
  for (const auto& backend : backends_)
    if (!is_traced) backend->before_routes(tokens.x);
  LayerCourse course{.phase = pass_.phase};
  ExpertWave wave{.layer = tokens.layer,
                  .phase = pass_.phase,
                  .top_k = shape_.top_k,
                  .expert_bytes = cache_ != nullptr ? cache_->expert_bytes(tokens.layer) : 0,
                  .x = tokens.x,
                  .parts = {.data = {.buffer = scratch_.get(), .offset_bytes = parts_at_},
                            .rows = tokens.x.rows * shape_.top_k,
                            .cols = shape_.hidden,
                            .stride = shape_.hidden},
                  .groups = {},
                  .tracer = is_traced ? tracer_.get() : nullptr,
                  .course = &course};
  if (is_resident()) wave.parts.data = {.buffer = traced_parts_.get(), .offset_bytes = 0};
  const RouteIds ids{.on_device = tokens.ids, .on_host = {.buffer = routes_.get(), .offset_bytes = 0}};
  TRY_ASSIGN(const std::vector<uint32_t> chosen, chosen_experts(tokens, [&](std::shared_ptr<kernels::Event> there) {
               course.all.begin = std::move(there);
               for (const auto& backend : backends_)
                 if (!is_traced) backend->compute_held(wave, ids);
             }));
  if (!hearing_.empty()) heard_.insert(heard_.end(), chosen.begin(), chosen.end());
  settle();
  const std::vector<RoutedGroup> groups = group_by_expert(chosen, shape_.top_k, first_row);
  wave.groups = groups;
  if (is_traced) {  // a trace gets experts one by one, ascending
    for (const RoutedGroup& group : groups) {
      wave.groups = {&group, 1};
      TRY(compute(wave, {}, stop));
    }
    if (tokens.meanwhile) tokens.meanwhile();
  } else {
    TRY(compute(wave, tokens.meanwhile, stop));
  }
  for (const auto& backend : backends_)
    backend->end_wave(wave);
  target_.queue.combine(y, wave.parts, tokens.weights, shape_.top_k);
  course.all.end = target_.queue.mark();
  advance();
  if (!is_traced) courses_.push_back(std::move(course));  // tracing distorts times
  return {};
}

// Starts reading the missing experts, and gives those in memory to their backends. Then comes the layer's other work,
// which may look at its own results, and so must be enqueued before work that waits for experts.
Result<void> RoutedExperts::compute(const ExpertWave& wave, const std::function<void()>& meanwhile,
                                    const std::stop_token& stop) {
  std::vector<size_t> missing(wave.groups.size());
  for (size_t i = 0; i < missing.size(); ++i)
    missing[i] = i;
  for (const auto& backend : backends_)
    backend->begin_wave(wave, missing);
  std::vector<ExpertDemand> wanted(missing.size());
  std::ranges::transform(missing, wanted.begin(), [&](size_t group) { return wave.groups[group].demand; });
  std::unique_ptr<ExpertRequest> request;
  if (!wanted.empty()) {
    TRY_ASSIGN(request, store_->request(wave.layer, std::move(wanted)));
  }
  size_t taken = 0;
  const auto assign = [&] {
    ++taken;
    return assign_next(wave, missing, *request, stop);
  };
  const auto enqueue_taken = [&] {
    for (const auto& backend : backends_)
      backend->enqueue_taken(wave);
  };
  while (taken < missing.size() && request->is_ready())
    TRY(assign());
  if (meanwhile) {
    LayerCourse::Span other{.begin = target_.queue.mark(), .end = {}};
    meanwhile();
    other.end = target_.queue.mark();
    wave.course->hits.push_back(std::move(other));
  }
  enqueue_taken();
  while (true) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
    take_forecast();
    const bool has_more = taken < missing.size();
    if (!(has_more && request->is_ready())) {
      if (compute_next(wave)) continue;
      if (!has_more) break;
      if (awaited_) continue;  // poll: it comes before what the device waits for, and reading can start with it
      // Reading may wait for host slots that copies hold.
      if (request->is_starved() &&
          std::ranges::any_of(backends_, [](const auto& backend) { return backend->release_oldest(); }))
        continue;
    }
    TRY(assign());
    enqueue_taken();
  }
  if (request != nullptr) wave.course->host_transfer += request->transfer_seconds();
  return {};
}

Result<void> RoutedExperts::assign_next(const ExpertWave& wave, std::span<const size_t> missing, ExpertRequest& request,
                                        const std::stop_token& stop) {
  if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
  TRY_ASSIGN(ExpertLease lease, request.next(stop));
  const size_t group = missing[lease.index()];
  std::vector<ExpertBackend*> candidates;
  std::vector<Eta> etas;
  for (const auto& backend : backends_) {
    if (!backend->may_take(wave, group)) continue;
    candidates.push_back(backend.get());
    etas.push_back(backend->eta(wave, group));
  }
  candidates[soonest(etas)]->take(wave, group, std::move(lease));
  return {};
}

bool RoutedExperts::compute_next(const ExpertWave& wave) {
  for (const auto& backend : backends_) {
    auto computed = backend->compute_next(wave);
    if (!computed) continue;
    const auto home =
        std::ranges::find_if(backends_, [&](const auto& other) { return other->may_take(wave, computed->group); });
    if (*home != backend) (*home)->offer(wave, std::move(*computed));
    return true;
  }
  return false;
}

void RoutedExperts::settle() const {
  while (!courses_.empty() && courses_.front().all.end->is_reached()) {
    const LayerCourse& course = courses_.front();
    const ExpertTimes times = times_of(course);
    waiting_[static_cast<size_t>(course.phase)] += std::max(0.0, times.total - times.hits - times.misses);
    if (course.phase == Phase::decode) decode_bound_.add(times);
    courses_.pop_front();
  }
}

}  // namespace dspack::runtime
