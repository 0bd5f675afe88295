// Feed-forward operations of the queue: MLPs, the router, experts.
#include <algorithm>
#include <array>
#include <vector>

#include "format/base/check.h"
#include "kernels/checks.h"
#include "kernels/cuda/experts/expert_tiles.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/experts_blas.h"
#include "kernels/cuda/host/cuda_memory.h"
#include "kernels/cuda/host/operands.h"
#include "kernels/cuda/host/queue.h"
#include "kernels/cuda/tokens/route.h"

namespace dspack::kernels::cuda {

namespace {

/// Whether the experts have enough rows for the library, on average.
bool has_rows_for(const ExpertsBlasChoice& choice, const ExpertsTask& task) {
  return choice.path != BlasPath::none &&
         uint64_t{task.tokens} * task.top_k >= uint64_t{choice.least_rows} * task.experts;
}

/// Capabilities to try in turn: all that the card has, then without FP8 if that is refused.
std::array<BlasCard, 2> blas_cards(const LinearBlas& blas) {
  return {blas.card(), BlasCard{}};
}

/// Some tokens of a task.
ExpertsTask tokens_of(const ExpertsTask& task, uint32_t first, uint32_t count) {
  ExpertsTask part = task;
  const uint64_t routed = uint64_t{first} * task.top_k;
  part.x.data += first * task.x.stride;
  part.y.data += first * task.y.stride;
  if (task.more.data != nullptr) part.more.data += first * task.more.stride;
  part.ids += routed;
  part.weights += routed;
  part.tokens = count;
  return part;
}

uint64_t parts_scratch_bytes(const CudaExpertTable& table, const Rows& x, uint32_t top_k, Precision precision) {
  return experts_scratch_bytes({.hidden = x.cols,
                                .inner = table.form().gate_up.out,
                                .experts = table.size(),
                                .top_k = top_k,
                                .rows = x.rows,
                                .parts_only = true},
                               precision);
}

}  // namespace

void CudaQueue::route(const RouterArgs& args) {
  check_route(args);
  if (args.rows != 0) run_route(stream(), args.at(kAddresses));
}

void CudaQueue::route_rows(const Weight& router, const Rows& x, const RouterArgs& args) {
  const Rows logits{.data = args.logits, .rows = args.rows, .cols = args.experts, .stride = args.experts};
  check_linear(router, x, logits);
  check_route(args);
  const LinearTask task{.weight = matrix_of(router), .x = inputs_at(x), .y = rows_at(logits), .rows = x.rows};
  if (x.rows == 0 || x.rows > kMaxFusedRows || !takes_route(task)) return Queue::route_rows(router, x, args);
  const RouteEnd end{.task = args.at(kAddresses), .counter = expert_counters() + kRouteCounter};
  if (multiplies_on_tensor_cores(task.weight)) {
    const RoundedRows rounded_x =
        rounded({.x = task.x, .rows = task.rows, .in = router.in, .to = {}}, input_rounding(router.coding, precision_));
    linear_tensor_route(*stream_, {.weight = task.weight, .x = rounded_x, .y = task.y, .rows = task.rows}, end);
  } else {
    linear_exact_route(*stream_, task, end, properties_.multiprocessors);
  }
  (void)stream_to(written_to(logits));
}

ExpertsTask CudaQueue::experts_task(const ExpertsArgs& args) {
  const auto& table = static_cast<const CudaExpertTable&>(*args.table);
  check_experts(args, experts_scratch_bytes({.hidden = args.x.cols,
                                             .inner = table.form().gate_up.out,
                                             .experts = table.size(),
                                             .top_k = args.top_k,
                                             .rows = args.x.rows},
                                            precision_));
  DSPACK_CHECK(args.x.cols == table.form().gate_up.in, "experts of another model");
  return {.table = table.entries(),
          .form = table.form(),
          .experts = table.size(),
          .x = inputs_at(args.x),
          .ids = numbers(args.ids),
          .weights = floats(args.weights),
          .tokens = args.x.rows,
          .top_k = args.top_k,
          .scratch = address_of(args.scratch),
          .y = rows_at(args.y),
          .counters = expert_counters()};
}

void CudaQueue::run_own_experts(ExpertsTask task) {
  if (precision_ == Precision::exact || !experts_fit_tensor_cores(task.form)) return cuda::run_experts(stream(), task);
  const auto rounded_x = rounded_.find({.x = task.x, .rows = task.tokens, .in = task.form.gate_up.in, .to = {}},
                                       input_rounding(task.form.gate_up.coding, precision_));
  if (rounded_x) task.rounded_x = *rounded_x;
  run_experts_tensor(stream(), task, precision_);
}

/// Computes some experts' rows by the library. False: it does not do them all.
bool CudaQueue::run_blas_groups(const ExpertsTask& task, std::span<const ExpertEntry> entries,
                                std::span<const ExpertGroup> groups, bool parts_only, const BlasCard& card) {
  const BlasPath path = choose_experts_blas(task.form, precision_, card).path;
  const uint32_t piece_rows = choose_piece_rows(path,
                                                {.hidden = task.form.gate_up.in,
                                                 .inner = task.form.gate_up.out,
                                                 .experts = task.experts,
                                                 .top_k = task.top_k,
                                                 .rows = task.tokens,
                                                 .parts_only = parts_only},
                                                blas_->limits());
  if (piece_rows == 0) return false;
  const ExpertsBlasPlan plan = plan_experts_blas(groups, task.top_k, parts_only, piece_rows);
  const uint32_t* words = on_device(plan.words);
  return blas_->run(
      stream(),
      {.experts = task, .entries = entries, .parts_only = parts_only, .path = path, .plan = plan, .words = words});
}

/// Computes all experts' rows by the library. False: it does not do them all.
bool CudaQueue::run_blas_experts(const ExpertsTask& task, std::span<const ExpertEntry> entries,
                                 std::span<const uint32_t> ids) {
  const SortedAssignments sorted = sort_assignments(ids, task.experts);
  if (sorted.groups.empty()) return false;
  for (const BlasCard& card : blas_cards(*blas_)) {
    const ExpertsBlasChoice choice = choose_experts_blas(task.form, precision_, card);
    if (!has_rows_for(choice, task)) return false;
    if (run_blas_groups(task, entries, sorted.groups, false, card)) return true;
    if (choice.path != BlasPath::fp8) return false;
  }
  return false;
}

/// Starts downloading the ids that the host needs if the library should multiply by these experts.
CudaQueue::FetchedIds CudaQueue::fetch_ids(const ExpertsTask& task) {
  const bool by_blas = blas_ != nullptr && !is_recording_ && has_whole_pieces(task.x) &&
                       has_rows_for(choose_experts_blas(task.form, precision_, blas_->card()), task) &&
                       blas_->has_workspace(false);
  if (!by_blas) return {};
  FetchedIds fetched{.ids = std::vector<uint32_t>(size_t{task.tokens} * task.top_k)};
  stream().copy_to_host(fetched.ids.data(), task.ids, fetched.ids.size() * sizeof(uint32_t));
  fetched.arrival = stream().mark();
  return fetched;
}

/// Waits for the ids while the GPU computes work that was enqueued meanwhile.
void CudaQueue::run_experts_task(const ExpertsTask& task, const ExpertTable& table, const FetchedIds& fetched) {
  if (fetched.ids.empty()) return run_own_experts(task);
  fetched.arrival->wait();
  const auto entries = static_cast<const CudaExpertTable&>(table).entries_on_host();
  const uint32_t most = std::max(kMaxBlasAssignments / task.top_k, 1U);
  for (uint32_t first = 0; first < task.tokens; first += most) {
    const ExpertsTask part = tokens_of(task, first, std::min(most, task.tokens - first));
    const auto ids = std::span(fetched.ids).subspan(size_t{first} * task.top_k, size_t{part.tokens} * task.top_k);
    if (!run_blas_experts(part, entries, ids)) run_own_experts(part);
  }
}

void CudaQueue::run_experts(const ExpertsArgs& args) {
  const ExpertsTask task = experts_task(args);
  if (task.tokens > 0) run_experts_task(task, *args.table, fetch_ids(task));
}

/// Gate, up and SiLU, with the result rounded for down.
void CudaQueue::gate_mlp(const MlpArgs& args) {
  const ExpertMatrices& weights = args.weights;
  const bool rounds = args.x.rows != 0 && args.x.rows <= kMaxFusedRows && weights.gate.out != 0 &&
                      multiplies_on_tensor_cores(matrix_of(weights.down));
  if (!rounds) return gated_linear(weights.gate, weights.up, args.x, args.inner, args.scratch, weights.limit);
  linear_each(
      std::array{Product{.weight = weights.gate, .y = args.inner}, Product{.weight = weights.up, .y = args.scratch}},
      args.x);
  check_same_shape(args.inner, args.scratch);
  gpu::Stream& stream = stream_to(written_to(args.inner));
  const RoundRowsTask rows{.x = inputs_at(args.inner), .rows = args.inner.rows, .in = args.inner.cols, .to = {}};
  run_silu_multiply_rounded(stream, pair(args.inner, args.scratch),
                            place_for_rounded(rows, input_rounding(weights.down.coding, precision_)), weights.limit);
}

void CudaQueue::run_mlp(const MlpArgs& args) {
  gate_mlp(args);
  linear(args.weights.down, args.inner, args.y);
}

void CudaQueue::add_mlp(const MlpArgs& args, const Rows& residual) {
  gate_mlp(args);
  add_linear(args.weights.down, args.inner, residual, args.y);
}

void CudaQueue::add_moe(const MoeArgs& args) {
  ExpertsTask task = experts_task(args.experts);
  check_same_shape(args.residual, args.experts.y);
  if (task.tokens == 0) return;
  task.y = rows_at(args.residual);
  task.adds = true;
  const ExpertTable& table = *args.experts.table;
  if (args.shared == nullptr) return run_experts_task(task, table, fetch_ids(task));
  const MlpArgs& mlp = *args.shared;
  check_mlp(mlp);
  check_same_shape(mlp.x, args.experts.x);
  SharedExpert shared{.gate = matrix_of(mlp.weights.gate),
                      .up = matrix_of(mlp.weights.up),
                      .down = matrix_of(mlp.weights.down),
                      .inner = rows_at(mlp.inner),
                      .y = rows_at(mlp.y),
                      .limit = mlp.weights.limit};
  task.shared = &shared;
  if (precision_ == Precision::exact && takes_shared_expert(task)) return run_own_experts(task);
  if (precision_ != Precision::exact && takes_shared_expert_tensor(task)) {
    const RoundRowsTask inner{.x = inputs_at(mlp.inner), .rows = mlp.inner.rows, .in = mlp.inner.cols, .to = {}};
    shared.rounded_inner = place_for_rounded(inner, input_rounding(mlp.weights.down.coding, precision_));
    return run_own_experts(task);
  }
  task.shared = nullptr;
  task.more = inputs_at(mlp.y);
  const FetchedIds fetched = fetch_ids(task);
  run_mlp(mlp);
  run_experts_task(task, table, fetched);
}

/// Computes the groups with enough rows by the library. Returns the others and those that it refused. An expert's
/// result does not depend on which others are computed with it.
std::vector<ExpertGroup> CudaQueue::run_large_groups(const ExpertsTask& task, std::span<const ExpertEntry> entries,
                                                     std::span<const ExpertGroup> groups) {
  std::vector<ExpertGroup> left(groups.begin(), groups.end());
  if (blas_ == nullptr || is_recording_ || !has_whole_pieces(task.x)) return left;
  for (const BlasCard& card : blas_cards(*blas_)) {
    const ExpertsBlasChoice choice = choose_experts_blas(task.form, precision_, card);
    if (choice.path == BlasPath::none) return left;
    const auto large = std::stable_partition(
        left.begin(), left.end(), [&](const ExpertGroup& group) { return group.parts.size() < choice.least_rows; });
    if (large == left.end() || !blas_->has_workspace(false)) return left;
    std::vector<ExpertGroup> refused;
    for (auto first = large; first != left.end();) {
      uint64_t assignments = first->parts.size();
      auto end = first + 1;
      for (; end != left.end() && assignments + end->parts.size() <= kMaxBlasAssignments; ++end)
        assignments += end->parts.size();
      if (!run_blas_groups(task, entries, {first, end}, true, card)) refused.insert(refused.end(), first, end);
      first = end;
    }
    left.erase(large, left.end());
    left.insert(left.end(), refused.begin(), refused.end());
    if (choice.path != BlasPath::fp8) return left;
  }
  return left;
}

/// A task that writes parts; the caller sets its assignments.
ExpertsTask CudaQueue::parts_task(const CudaExpertTable& table, const Rows& x, uint32_t top_k, const Slice& scratch,
                                  const Rows& parts) {
  DSPACK_CHECK(x.cols == table.form().gate_up.in, "experts of another model");
  return {.table = table.entries(),
          .form = table.form(),
          .experts = table.size(),
          .x = inputs_at(x),
          .tokens = x.rows,
          .top_k = top_k,
          .scratch = address_of(scratch),
          .parts = rows_at(parts),
          .counters = expert_counters()};
}

void CudaQueue::run_expert_parts(const ExpertPartsArgs& args) {
  const auto& table = static_cast<const CudaExpertTable&>(*args.table);
  check_expert_parts(args, parts_scratch_bytes(table, args.x, args.top_k, precision_));
  ExpertsTask task = parts_task(table, args.x, args.top_k, args.scratch, args.parts);
  const std::vector<ExpertGroup> groups = run_large_groups(task, table.entries_on_host(), args.groups);
  const uint32_t most = largest_group(groups);
  if (most == 0) return;
  const bool on_tensor_cores = precision_ != Precision::exact && experts_fit_tensor_cores(table.form());
  const ExpertGroupWords cut = cut_expert_groups(groups, on_tensor_cores ? tensor_tile(most) : exact_tile(most));
  task.cut = cut.at(on_device(cut.words), most);
  run_own_experts(task);
}

bool CudaQueue::run_held_experts(const HeldExpertsArgs& args) {
  const auto& table = static_cast<const CudaExpertTable&>(*args.table);
  check_held_experts(args, parts_scratch_bytes(table, args.x, args.top_k, precision_));
  const uint32_t rows = args.x.rows;
  if (rows == 0 || rows > kMaxFusedRows || args.parts.rows > kMaxHeldAssignments || is_recording_) return false;
  ExpertsTask task = parts_task(table, args.x, args.top_k, args.scratch, args.parts);
  const bool on_tensor_cores = precision_ != Precision::exact && experts_fit_tensor_cores(table.form());
  const HeldAssignments held{.ids = reinterpret_cast<const uint32_t*>(visible_address(args.ids)),
                             .entries = visible_to_device(args.entries),
                             .count = args.parts.rows};
  task.cut = cut_held_experts(*stream_, held, launch_count(args.entries.size()),
                              on_tensor_cores ? tensor_tile(rows) : exact_tile(rows), expert_counters() + kHeldTiles);
  task.cut.most = rows;
  run_own_experts(task);
  return true;
}

}  // namespace dspack::kernels::cuda
