#include "runtime/experts/vram/tiered_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "format/base/checked.h"
#include "runtime/model/scratch.h"

namespace dspack::runtime {

namespace {

// Rows of a pass of which the CPU computes experts: a decode pass has no more.
constexpr uint32_t kMostHostRows = 16;
// For who listens to single experts: little memory beside what the run itself has taken.
constexpr uint32_t kListenedTokens = 256;
constexpr uint32_t kListenedTile = 64;
constexpr uint64_t kAlignment = 256;

HostExperts::Shape host_shape(const ExecutorShape& shape) {
  return {.hidden = shape.hidden,
          .inner = shape.expert_inner,
          .top_k = shape.top_k,
          .rows = std::min(shape.wave_tokens, kMostHostRows)};
}

uint64_t parts_bytes(const ExecutorShape& shape) {
  return uint64_t{shape.wave_tokens} * shape.top_k * shape.hidden * sizeof(float);
}

}  // namespace

kernels::ExpertsShape TieredExecutor::device_shape(const ExecutorShape& shape) {
  return {.hidden = shape.hidden,
          .inner = shape.expert_inner,
          .experts = shape.experts,
          .top_k = shape.top_k,
          .rows = shape.wave_tokens};
}

uint64_t TieredExecutor::scratch_bytes_for(const kernels::Device& device, const ExecutorShape& shape) {
  return round_up(device.experts_scratch_bytes(device_shape(shape)), kAlignment) + parts_bytes(shape);
}

uint64_t TieredExecutor::host_bytes_for(const kernels::Device& host, const ExecutorShape& shape) {
  return HostExperts::bytes_for(host, host_shape(shape));
}

TieredExecutor::TieredExecutor(const Parts& parts, const ExecutorShape& shape, const MissOptions& miss)
    : parts_(parts), shape_(shape), miss_(miss) {}

Result<std::unique_ptr<TieredExecutor>> TieredExecutor::make(const Parts& parts, const ExecutorShape& shape,
                                                             const VramTierOptions& tier, const MissOptions& miss) {
  DSPACK_CHECK(shape.wave_tokens > 0, "an executor without room");
  std::unique_ptr<TieredExecutor> executor(new TieredExecutor(parts, shape, miss));
  TRY_ASSIGN(executor->tier_, VramTier::make(parts.device, parts.store, tier));
  TRY_ASSIGN(executor->scratch_, parts.device.allocate(scratch_bytes_for(parts.device, shape)));
  executor->parts_at_ = round_up(parts.device.experts_scratch_bytes(device_shape(shape)), kAlignment);
  TRY_ASSIGN(executor->host_, HostExperts::make(parts.host, parts.device, host_shape(shape)));
  executor->slots_ = std::make_unique<TieredStore>(*executor->tier_, parts.store, parts.queue);
  return executor;
}

TieredExecutor::~TieredExecutor() {
  parts_.queue.synchronize();
}

void TieredExecutor::begin_pass(const ExpertPass& pass) {
  settle();
  pass_ = pass;
  parts_.store.begin_pass(pass);
  tier_->begin_pass(pass);
  if (recorder_ != nullptr) recorder_->begin_pass(pass);
}

void TieredExecutor::accept_drafts(uint32_t rows) {
  parts_.store.accept_drafts(rows);
  tier_->accept_drafts(rows);
  if (recorder_ != nullptr) recorder_->accept_drafts(rows);
}

MissCounts TieredExecutor::miss_counts() const {
  settle();
  MissCounts counts = parts_.store.miss_counts();
  const VramStats stats = tier_->stats();
  counts.misses = 0;
  counts.waiting_seconds = 0;
  for (const VramPhaseStats& phase : stats.phases) {
    counts.misses += phase.misses();
    counts.waiting_seconds += phase.waiting_seconds;
  }
  counts.draft_misses = stats.draft_misses;
  return counts;
}

const DecodeBound& TieredExecutor::decode_bound() const {
  settle();
  return decode_bound_;
}

ExpertStoreStats TieredExecutor::stats() const {
  settle();
  ExpertStoreStats stats = parts_.store.stats();
  stats.vram = tier_->stats();
  stats.vram->miss = to_string(miss_.mode);
  stats.vram->is_deterministic = miss_.is_deterministic;
  return stats;
}

bool TieredExecutor::wants_forecast() const {
  return parts_.store.wants_forecast() || tier_->is_prefetching();
}

// Of what is expected, the host reads what no memory has, and the device copies what the host has.
void TieredExecutor::expect(LayerId layer, std::span<const ExpertId> experts) {
  std::vector<ExpertId> absent;
  std::ranges::copy_if(experts, std::back_inserter(absent),
                       [&](ExpertId expert) { return !tier_->holds({.layer = layer, .expert = expert}); });
  parts_.store.expect(layer, absent);
  tier_->prefetch(layer, absent);
}

bool TieredExecutor::may_compute() const {
  return pass_.phase == Phase::decode && pass_.rows <= kMostHostRows && miss_.mode != MissMode::move &&
         !(miss_.mode == MissMode::automatic && miss_.is_deterministic);
}

Result<GroupedExecutor*> TieredExecutor::one_by_one() {
  if (grouped_ == nullptr) {
    ExecutorShape shape = shape_;
    shape.wave_tokens = std::min(shape.wave_tokens, kListenedTokens);
    shape.tile_tokens = kListenedTile;
    TRY_ASSIGN(grouped_, GroupedExecutor::make(parts_.device, parts_.queue, *slots_, shape));
  }
  return grouped_.get();
}

Result<void> TieredExecutor::run(const RoutedTokens& tokens, const kernels::Rows& y, const std::stop_token& stop) {
  if (recorder_ != nullptr) {
    TRY_ASSIGN(const std::vector<uint32_t> chosen, chosen_experts(tokens, false));
    TRY(recorder_->record(tokens.layer, chosen));
  }
  if (tokens.trace.on()) {
    TRY_ASSIGN(GroupedExecutor * grouped, one_by_one());
    return grouped->run(tokens, y, stop);
  }
  const auto done = run_waves(tokens, y, stop);
  if (!done) parts_.queue.synchronize();  // what was enqueued borrows the caller's memory
  return done;
}

Result<void> TieredExecutor::run_waves(const RoutedTokens& tokens, const kernels::Rows& y,
                                       const std::stop_token& stop) {
  for (uint32_t first = 0; first < tokens.x.rows; first += shape_.wave_tokens) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
    const uint32_t count = std::min(shape_.wave_tokens, tokens.x.rows - first);
    const uint64_t routed = uint64_t{first} * shape_.top_k * sizeof(float);
    const Wave wave{.tokens = {.layer = tokens.layer,
                               .x = rows_of(tokens.x, first, count),
                               .ids = tokens.ids.at(routed),
                               .weights = tokens.weights.at(routed),
                               .meanwhile = first == 0 ? tokens.meanwhile : nullptr},
                    .first_row = first,
                    .parts = {.data = {.buffer = scratch_.get(), .offset_bytes = parts_at_},
                              .rows = count * shape_.top_k,
                              .cols = shape_.hidden,
                              .stride = shape_.hidden}};
    TRY(run_wave(wave, rows_of(y, first, count), stop));
  }
  return {};
}

// The one place where the host waits for the device.
Result<std::vector<uint32_t>> TieredExecutor::chosen_experts(const RoutedTokens& tokens, bool with_input) {
  std::vector<uint32_t> chosen(size_t{tokens.x.rows} * shape_.top_k);
  parts_.queue.download(std::as_writable_bytes(std::span(chosen)), tokens.ids);
  if (with_input) host_->begin_layer(parts_.queue, tokens.x);
  TRY(parts_.queue.finish());
  for (const uint32_t expert : chosen)
    DSPACK_CHECK(expert < shape_.experts, fmt::format("layer {}: routed to no expert", tokens.layer.value));
  return chosen;
}

std::vector<TieredExecutor::Group> TieredExecutor::group_by_expert(const Wave& wave,
                                                                   std::span<const uint32_t> chosen) const {
  std::map<uint32_t, Group> by_expert;  // ascending, so that files are met in their usual order
  for (uint32_t part = 0; part < chosen.size(); ++part) {
    Group& group = by_expert[chosen[part]];
    const uint32_t row = wave.first_row + part / shape_.top_k;
    if (group.parts.empty()) group.demand = {.expert = ExpertId(chosen[part]), .rows = 0, .first_row = row};
    group.demand.last_row = row;
    ++group.demand.rows;
    group.parts.push_back(part);
  }
  std::vector<Group> groups;
  groups.reserve(by_expert.size());
  for (auto& [expert, group] : by_expert)
    groups.push_back(std::move(group));
  return groups;
}

Result<void> TieredExecutor::run_wave(const Wave& wave, const kernels::Rows& y, const std::stop_token& stop) {
  TRY_ASSIGN(const std::vector<uint32_t> chosen, chosen_experts(wave.tokens, may_compute()));
  settle();
  tier_->reap();
  const std::vector<Group> groups = group_by_expert(wave, chosen);
  Course course;
  course.phase = pass_.phase;
  course.start = parts_.queue.mark();
  TRY_ASSIGN(Missing missing, compute_hits(wave, groups, course));
  TRY(compute_missing(wave, groups, missing, course, stop));
  parts_.queue.combine(y, wave.parts, wave.tokens.weights, shape_.top_k);
  course.end = parts_.queue.mark();
  if (missing.request != nullptr) course.host_transfer = missing.request->transfer_seconds();
  courses_.push_back(std::move(course));
  return {};
}

void TieredExecutor::run_parts(const Wave& wave, std::span<const kernels::ExpertGroup> groups) {
  parts_.queue.run_expert_parts({.table = &tier_->table(wave.tokens.layer),
                                 .x = wave.tokens.x,
                                 .groups = groups,
                                 .top_k = shape_.top_k,
                                 .scratch = {.buffer = scratch_.get(), .offset_bytes = 0},
                                 .parts = wave.parts});
}

// Those that have arrived, in one launch.
Result<TieredExecutor::Missing> TieredExecutor::compute_hits(const Wave& wave, std::span<const Group> groups,
                                                             Course& course) {
  std::vector<ExpertDemand> demands;
  for (const Group& group : groups)
    demands.push_back(group.demand);
  tier_->begin_layer(wave.tokens.layer, demands);
  Missing missing;
  std::vector<kernels::ExpertGroup> there;
  std::vector<VramSlot*> used;
  for (size_t i = 0; i < groups.size(); ++i) {
    VramSlot* const slot = tier_->use(wave.tokens.layer, groups[i].demand);
    if (slot == nullptr) {
      missing.groups.push_back(i);
    } else if (slot->arrival != nullptr) {
      missing.under_way.emplace_back(i, slot);
    } else {
      there.push_back({.entry = slot->entry, .parts = groups[i].parts});
      used.push_back(slot);
    }
  }
  if (!there.empty()) run_parts(wave, there);
  course.hits = parts_.queue.mark();
  for (VramSlot* const slot : used)
    slot->used_until = course.hits;
  missing.fills = tier_->empty_slots(wave.tokens.layer);
  std::vector<ExpertDemand> wanted;
  for (const size_t i : missing.groups)
    wanted.push_back(groups[i].demand);
  // What is missing begins to be read before anything is waited for.
  if (!wanted.empty()) {
    TRY_ASSIGN(missing.request, parts_.store.request(wave.tokens.layer, std::move(wanted)));
  }
  return missing;
}

void TieredExecutor::run_in_slot(const Wave& wave, const Group& group, VramSlot& slot, Course& course) {
  kernels::Queue& queue = parts_.queue;
  Course::Miss miss{.arrival = slot.arrival, .begin = nullptr, .end = nullptr};
  if (slot.arrival != nullptr) queue.wait(*slot.arrival);
  miss.begin = queue.mark();
  const kernels::ExpertGroup one{.entry = slot.entry, .parts = group.parts};
  run_parts(wave, {&one, 1});
  miss.end = queue.mark();
  slot.used_until = miss.end;
  course.misses.push_back(std::move(miss));
}

void TieredExecutor::do_other_work(const Wave& wave, Course& course) {
  if (!wave.tokens.meanwhile) return;
  course.other_begin = parts_.queue.mark();
  wave.tokens.meanwhile();
  course.other_end = parts_.queue.mark();
}

void TieredExecutor::compute_under_way(const Wave& wave, std::span<const Group> groups, Missing& missing,
                                       Course& course) {
  for (const auto& [group, slot] : std::exchange(missing.under_way, {}))
    run_in_slot(wave, groups[group], *slot, course);
}

// Copies begin first; then comes the layer's other work, which may look at its own results, and so must not stand
// behind what waits for copies.
Result<void> TieredExecutor::compute_missing(const Wave& wave, std::span<const Group> groups, Missing& missing,
                                             Course& course, const std::stop_token& stop) {
  const auto has_more = [&] { return missing.taken < missing.groups.size(); };
  while (has_more() && missing.request->is_ready())
    TRY(assign_next(wave, groups, missing, course, stop));
  do_other_work(wave, course);
  compute_under_way(wave, groups, missing, course);
  while (has_more() || !missing.for_host.empty()) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
    if (has_more() && missing.request->is_ready()) {
      TRY(assign_next(wave, groups, missing, course, stop));
      compute_under_way(wave, groups, missing, course);
    } else if (!missing.for_host.empty()) {
      compute_on_host(wave, groups, missing, course);
    } else if (!tier_->reap_oldest()) {  // the host's slots that copies hold may be what reading waits for
      TRY(assign_next(wave, groups, missing, course, stop));
      compute_under_way(wave, groups, missing, course);
    }
  }
  return {};
}

// Empty slots are filled in any case, by experts in their own order, whichever arrives first: with `compute` it must
// not depend on a disk who computes what.
MissWay TieredExecutor::way_of(LayerId layer, const Missing& missing, size_t place, uint32_t rows) const {
  if (place < missing.fills) return MissWay::move;
  return choose_miss_way(miss_, tier_->rates(), {.link = tier_->backlog_seconds(), .cpu = missing.host_seconds},
                         tier_->expert_bytes(layer), rows);
}

Result<void> TieredExecutor::assign_next(const Wave& wave, std::span<const Group> groups, Missing& missing,
                                         Course& course, const std::stop_token& stop) {
  TRY_ASSIGN(ExpertLease lease, missing.request->next(stop));
  ++missing.taken;
  const size_t place = lease.index();
  const size_t index = missing.groups[place];
  const Group& group = groups[index];
  const uint64_t bytes = tier_->expert_bytes(wave.tokens.layer);
  tier_->reap();
  if (may_compute() && way_of(wave.tokens.layer, missing, place, group.demand.rows) == MissWay::compute) {
    missing.host_seconds += tier_->rates().compute_seconds(bytes, group.demand.rows).value_or(0);
    missing.for_host.push_back({.group = index, .lease = std::move(lease)});
    return {};
  }
  const bool is_filled = miss_.mode == MissMode::compute || pass_.phase == Phase::prefill;
  VramSlot& slot = tier_->move(wave.tokens.layer, group.demand, std::move(lease), !is_filled || place < missing.fills);
  course.last_on_host = 0;
  // A slot of the window soon gets the next expert: what reads it comes before.
  if (!slot.is_kept) {
    run_in_slot(wave, group, slot, course);
  } else {
    missing.under_way.emplace_back(index, &slot);
  }
  return {};
}

void TieredExecutor::compute_on_host(const Wave& wave, std::span<const Group> groups, Missing& missing,
                                     Course& course) {
  HostWork work = std::move(missing.for_host.front());
  missing.for_host.pop_front();
  const Group& group = groups[work.group];
  const uint64_t bytes = tier_->expert_bytes(wave.tokens.layer);
  const double seconds = host_->compute(work.lease.weights(), group.parts, parts_.queue, wave.parts);
  missing.host_seconds -=
      std::min(missing.host_seconds, tier_->rates().compute_seconds(bytes, group.demand.rows).value_or(0));
  tier_->rates().computed(bytes, group.demand.rows, seconds);
  tier_->count_computed(wave.tokens.layer, group.demand);
  course.host_seconds += seconds;
  course.last_on_host = seconds;
  // So that the cache follows what is wanted also where the CPU is the faster, as far as that costs nothing.
  if (miss_.mode == MissMode::automatic) tier_->promote(wave.tokens.layer, group.demand, std::move(work.lease));
}

void TieredExecutor::settle() const {
  const auto is_over = [](const Course& course) { return course.end->is_reached(); };
  while (!courses_.empty() && is_over(courses_.front())) {
    const Course& course = courses_.front();
    ExpertTimes times;
    times.total = course.end->seconds_since(*course.start);
    times.hits = course.hits->seconds_since(*course.start);
    if (course.other_begin != nullptr) times.hits += course.other_end->seconds_since(*course.other_begin);
    times.host = course.host_seconds;
    times.transfer = course.host_transfer;
    for (const Course::Miss& miss : course.misses) {
      times.last_miss = miss.end->seconds_since(*miss.begin);
      times.misses += times.last_miss;
      if (miss.arrival != nullptr)
        times.transfer = std::max(times.transfer, miss.arrival->seconds_since(*course.start));
    }
    if (course.last_on_host > 0) times.last_miss = course.last_on_host;
    tier_->count_waiting(course.phase, std::max(0.0, times.total - times.hits - times.misses));
    if (course.phase == Phase::decode) decode_bound_.add(times);
    courses_.pop_front();
  }
}

}  // namespace dspack::runtime
