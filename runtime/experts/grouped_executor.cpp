#include "runtime/experts/grouped_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <span>

#include "format/base/seconds.h"
#include "runtime/model/scratch.h"

namespace dspack::runtime {

namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

GroupedExecutor::Places GroupedExecutor::lay_out(const ExecutorShape& shape) {
  ScratchPlan plan;
  const uint64_t tile = std::min(shape.tile_tokens, shape.wave_tokens);
  Places places;
  places.input = plan.add(tile * shape.hidden);
  places.gate = plan.add(tile * shape.expert_inner);
  places.up = plan.add(tile * shape.expert_inner);
  places.output = plan.add(tile * shape.hidden);
  places.parts = plan.add(uint64_t{shape.wave_tokens} * shape.top_k * shape.hidden);
  places.size_bytes = plan.size_bytes();
  return places;
}

Result<std::unique_ptr<GroupedExecutor>> GroupedExecutor::make(kernels::Device& device, kernels::Queue& queue,
                                                               ExpertStore& store, const ExecutorShape& shape) {
  DSPACK_CHECK(shape.wave_tokens > 0 && shape.tile_tokens > 0, "an executor without room");
  TRY_ASSIGN(auto scratch, device.allocate(lay_out(shape).size_bytes));
  return std::unique_ptr<GroupedExecutor>(new GroupedExecutor(queue, store, shape, std::move(scratch)));
}

GroupedExecutor::GroupedExecutor(kernels::Queue& queue, ExpertStore& store, const ExecutorShape& shape,
                                 std::unique_ptr<kernels::Buffer> scratch)
    : queue_(queue), store_(store), shape_(shape), scratch_(std::move(scratch)), at_(lay_out(shape)) {}

kernels::Rows GroupedExecutor::rows_at(uint64_t offset, uint32_t rows, uint32_t cols) const {
  return {.data = {.buffer = scratch_.get(), .offset_bytes = offset}, .rows = rows, .cols = cols, .stride = cols};
}

void GroupedExecutor::begin_pass(const ExpertPass& pass) {
  store_.begin_pass(pass);
  if (recorder_ != nullptr) recorder_->begin_pass(pass);
}

void GroupedExecutor::accept_drafts(uint32_t rows) {
  store_.accept_drafts(rows);
  if (recorder_ != nullptr) recorder_->accept_drafts(rows);
}

Result<void> GroupedExecutor::run(const RoutedTokens& tokens, const kernels::Rows& y, const std::stop_token& stop) {
  if (recorder_ != nullptr) {
    TRY_ASSIGN(const std::vector<uint32_t> chosen, chosen_experts(tokens));
    TRY(recorder_->record(tokens.layer, chosen));
  }
  std::vector<uint32_t> tokens_of_expert;  // in all waves; only a trace wants to know
  if (tokens.trace.on()) {
    tokens_of_expert.resize(shape_.experts);
    TRY_ASSIGN(const std::vector<uint32_t> chosen, chosen_experts(tokens));
    for (const uint32_t expert : chosen)
      ++tokens_of_expert[expert];
  }
  for (uint32_t first = 0; first < tokens.x.rows; first += shape_.wave_tokens) {
    const uint32_t count = std::min(shape_.wave_tokens, tokens.x.rows - first);
    const uint64_t routed = uint64_t{first} * shape_.top_k * sizeof(float);
    TRY(run_wave({.tokens = {.layer = tokens.layer,
                             .x = rows_of(tokens.x, first, count),
                             .ids = tokens.ids.at(routed),
                             .weights = tokens.weights.at(routed),
                             .trace = tokens.trace,
                             .meanwhile = first == 0 ? tokens.meanwhile : nullptr},
                  .first_row = first,
                  .y = rows_of(y, first, count)},
                 tokens_of_expert, stop));
  }
  return {};
}

Result<std::vector<uint32_t>> GroupedExecutor::chosen_experts(const RoutedTokens& tokens) {
  std::vector<uint32_t> chosen(size_t{tokens.x.rows} * shape_.top_k);
  queue_.download(std::as_writable_bytes(std::span(chosen)), tokens.ids);
  TRY(queue_.finish());
  for (const uint32_t expert : chosen)
    DSPACK_CHECK(expert < shape_.experts, fmt::format("layer {}: routed to no expert", tokens.layer.value));
  return chosen;
}

Result<std::vector<GroupedExecutor::Group>> GroupedExecutor::group_by_expert(
    const RoutedTokens& wave, std::span<const uint32_t> tokens_of_expert) {
  TRY_ASSIGN(const std::vector<uint32_t> chosen, chosen_experts(wave));
  std::map<uint32_t, Group> by_expert;  // ascending, so that files are met in their usual order
  for (uint32_t part = 0; part < chosen.size(); ++part) {
    Group& group = by_expert[chosen[part]];
    group.expert = ExpertId(chosen[part]);
    group.tokens.push_back(part / shape_.top_k);
    group.parts.push_back(part);
  }
  std::vector<Group> groups;
  groups.reserve(by_expert.size());
  for (auto& [expert, group] : by_expert) {
    if (wave.trace.on()) {
      group.trace = wave.trace.child(std::to_string(expert));
      group.trace.expect(tokens_of_expert[expert]);
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

void GroupedExecutor::multiply(const ExpertWeights& expert, const Group& group, const kernels::Rows& x) {
  for (size_t first = 0; first < group.tokens.size(); first += shape_.tile_tokens)
    multiply_tile(expert, group, first, std::min<size_t>(shape_.tile_tokens, group.tokens.size() - first), x);
}

void GroupedExecutor::multiply_tile(const ExpertWeights& expert, const Group& group, size_t first, size_t count,
                                    const kernels::Rows& x) {
  const auto rows = static_cast<uint32_t>(count);
  const kernels::Rows input = rows_at(at_.input, rows, shape_.hidden);
  const kernels::Rows gate = rows_at(at_.gate, rows, shape_.expert_inner);
  const kernels::Rows up = rows_at(at_.up, rows, shape_.expert_inner);
  const kernels::Rows output = rows_at(at_.output, rows, shape_.hidden);
  queue_.gather_rows(input, x, std::span(group.tokens).subspan(first, count));
  group.trace.input(input);
  apply(expert.gate, queue_, input, gate, group.trace, "gate_proj");
  apply(expert.up, queue_, input, up, group.trace, "up_proj");
  queue_.silu_multiply(gate, up);
  apply(expert.down, queue_, gate, output, group.trace, "down_proj");
  group.trace.output(output);
  queue_.scatter_rows(rows_at(at_.parts, x.rows * shape_.top_k, shape_.hidden), output,
                      std::span(group.parts).subspan(first, count));
}

Result<void> GroupedExecutor::run_wave(const Wave& wave, std::span<const uint32_t> tokens_of_expert,
                                       const std::stop_token& stop) {
  const auto start = Clock::now();
  const RoutedTokens& tokens = wave.tokens;
  TRY_ASSIGN(const std::vector<Group> groups, group_by_expert(tokens, tokens_of_expert));
  ExpertTimes times;
  if (tokens.trace.on()) {
    // Who watches a pass hears of the experts in their own order, not in that of their arrival.
    for (const Group& group : groups)
      TRY(compute_as_they_come(wave, {&group, 1}, nullptr, times, stop));
    if (tokens.meanwhile) tokens.meanwhile();
  } else {
    TRY(compute_as_they_come(wave, groups, tokens.meanwhile, times, stop));
  }
  queue_.combine(wave.y, rows_at(at_.parts, tokens.x.rows * shape_.top_k, shape_.hidden), tokens.weights, shape_.top_k);
  times.total = seconds_since(start);
  if (store_.pass().phase == Phase::decode) decode_bound_.add(times);
  return {};
}

Result<void> GroupedExecutor::compute_as_they_come(const Wave& wave, std::span<const Group> groups,
                                                   const std::function<void()>& meanwhile, ExpertTimes& times,
                                                   const std::stop_token& stop) {
  std::vector<ExpertDemand> demands;
  demands.reserve(groups.size());
  for (const Group& group : groups) {
    demands.push_back({.expert = group.expert,
                       .rows = static_cast<uint32_t>(group.tokens.size()),
                       .first_row = wave.first_row + group.tokens.front(),
                       .last_row = wave.first_row + group.tokens.back()});
  }
  TRY_ASSIGN(const auto request, store_.request(wave.tokens.layer, std::move(demands)));
  bool has_other_work = meanwhile != nullptr;
  const auto do_other_work = [&] {
    const auto start = Clock::now();
    meanwhile();
    queue_.synchronize();
    has_other_work = false;
    times.hits += seconds_since(start);
  };
  for (size_t taken = 0; taken < groups.size(); ++taken) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "the run was interrupted"};
    if (has_other_work && !request->is_ready()) do_other_work();
    TRY_ASSIGN(const ExpertLease lease, request->next(stop));
    const auto start = Clock::now();
    multiply(lease.weights(), groups[lease.index()], wave.tokens.x);
    queue_.synchronize();  // the lease ends here
    const double seconds = seconds_since(start);
    (lease.was_missing() ? times.misses : times.hits) += seconds;
    if (lease.was_missing()) times.last_miss = seconds;
  }
  if (has_other_work) do_other_work();
  times.transfer += request->transfer_seconds();
  return {};
}

}  // namespace dspack::runtime
