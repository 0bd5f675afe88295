// Attention operations of the queue: latents, heads, the cache, the choice of positions.
#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cuda/attention/attend.h"
#include "kernels/cuda/attention/attend_expanded.h"
#include "kernels/cuda/attention/compress.h"
#include "kernels/cuda/attention/latent_rows.h"
#include "kernels/cuda/attention/latents.h"
#include "kernels/cuda/attention/window_attend.h"
#include "kernels/cuda/host/operands.h"
#include "kernels/cuda/host/queue.h"
#include "kernels/cuda/linear/head_linear.h"
#include "kernels/cuda/sparse/choose.h"

namespace dspack::kernels::cuda {

void CudaQueue::head_linear(const HeadLinearArgs& args) {
  check_head_linear(args);
  if (args.rows == 0 || args.heads == 0 || args.rows_used == 0) return;
  head_linear_exact(stream(), args.at(kAddresses));
}

void CudaQueue::head_linear_transposed(const HeadLinearArgs& args) {
  check_head_linear_transposed(args);
  if (args.rows == 0 || args.heads == 0 || args.weight.in == 0) return;
  head_linear_transposed_exact(stream(), args.at(kAddresses));
}

void CudaQueue::absorb(const RopeArgs& rotated, const HeadLinearArgs& absorbed) {
  check_rope(rotated);
  check_head_linear_transposed(absorbed);
  const bool has_both = rotated.rows != 0 && rotated.heads != 0 && rotated.dim != 0 && absorbed.rows != 0 &&
                        absorbed.heads != 0 && absorbed.weight.in != 0;
  const HeadLinearTask task = absorbed.at(kAddresses);
  if (!has_both || !takes_rotation(task)) return Queue::absorb(rotated, absorbed);
  absorb_exact(stream(), rotate_task(rotated), task);
}

void CudaQueue::finish_latents(const LatentsArgs& args, const Weight* query_reader) {
  if (args.rows.rows > kMaxFusedRows) return Queue::finish_latents(args, query_reader);
  Rows latent = args.rows;
  latent.cols = args.shape.latent_dim;
  check_rms_norm(latent, args.gain, latent);
  check_rope(args.rope);
  if (args.query.cols != 0) check_rms_norm(args.query, args.query_gain, args.query);
  if (is_empty(latent)) return;
  const auto norm = [&](const Rows& rows, Slice gain) {
    return RmsNormTask{.x = inputs_at(rows),
                       .y = rows_at(rows),
                       .gain = floats(gain),
                       .epsilon = args.epsilon,
                       .rows = rows.rows,
                       .cols = rows.cols};
  };
  LatentsTask task{
      .latent = norm(latent, args.gain), .rope = rotate_task(args.rope), .query = {}, .stored = {}, .in_fp8 = {}};
  (void)stream_to(written_to(args.rows));
  if (args.query.cols != 0) {
    (void)stream_to(written_to(args.query));
    task.query = norm(args.query, args.query_gain);
    if (query_reader != nullptr) round_for({query_reader, 1}, task.query);
  }
  if (!args.cache.empty()) {
    LivePosition live = args.rope.live;
    if (!live.empty()) live.limit -= args.rope.first_position;
    if (args.cache_dtype == Dtype::f8_e4m3) {
      check_stored_latents(args.rows, args.cache, args.shape, live);
      task.in_fp8 = store_latents_task(args.cache, args.shape, args.rows, live);
    } else {
      check_stored_rows(args.rows, args.cache, args.cache_dtype, live);
      task.stored = store_rows_task(args.cache, args.cache_dtype, args.rows, live);
    }
    (void)stream_to(written_behind(args.cache));
  }
  run_latents(*stream_, task);
}

void CudaQueue::rope(const RopeArgs& args) {
  check_rope(args);
  if (args.rows == 0 || args.heads == 0 || args.dim == 0) return;
  const uint64_t values =
      (args.rows - 1) * uint64_t{args.row_stride} + (args.heads - 1) * uint64_t{args.head_stride} + args.dim;
  run_rotate(stream_to(written_to(floats(args.data), values)), rotate_task(args));
}

void CudaQueue::choose(const ChooseArgs& args) {
  check_choose(args);
  if (args.rows == 0) return;
  ChooseTask task{args.at(kAddresses)};
  task.on_tensor_cores = precision_ != Precision::exact && fits_tensor_scores(args.keys.in, properties_);
  task.scratch = workspace_.at_least(std::max(choose_scratch_bytes(args.rows, args.key_limit()), expected_bytes_));
  task.counters = choose_counters();
  run_choose(stream(), task);
}

void CudaQueue::store_in_ring(const StoreInRingArgs& args) {
  check_store_in_ring(args);
  if (is_empty(args.rows)) return;
  StoreRowsTask task = store_rows_task(args.ring, args.dtype, args.rows, args.live);
  task.first_row = args.first_position;
  task.ring_rows = args.ring_rows;
  run_store_rows(stream_to(written_behind(args.ring)), task);
}

void CudaQueue::window_attend(const WindowAttendArgs& args) {
  check_window_attend(args);
  if (args.rows == 0 || args.heads == 0) return;
  uint64_t entries = args.entries.empty() ? 0 : args.position_limit() / args.every;
  if (!args.choice.empty()) entries = std::min<uint64_t>(entries, args.choice.most);
  const uint64_t scratch = window_scratch_bytes(args.rows, args.heads, args.dim);
  float* const partial =
      scratch == 0 ? nullptr : reinterpret_cast<float*>(workspace_.at_least(std::max(scratch, expected_bytes_)));
  run_window_attend(stream(), {.queries = floats(args.queries),
                               .ring = address_of(args.ring),
                               .ring_rows = args.ring_rows,
                               .window = args.window,
                               .entries = address_of(args.entries),
                               .every = args.every,
                               .chosen = numbers(args.choice.ids),
                               .counts = numbers(args.choice.counts),
                               .most = args.choice.most,
                               .sinks = floats(args.sinks),
                               .out = floats(args.out),
                               .rows = args.rows,
                               .heads = args.heads,
                               .dim = args.dim,
                               .first_position = args.first_position,
                               .live = numbers(args.live.value),
                               .scale = args.scale,
                               .dtype = args.cache_dtype,
                               .partial = partial,
                               .most_keys = args.window + entries});
}

void CudaQueue::compress(const CompressArgs& args) {
  check_compress(args);
  if (args.values.rows == 0) return;
  run_compress(stream(), {.values = inputs_at(args.values),
                          .gates = inputs_at(args.gates),
                          .ape = floats(args.ape),
                          .state = floats(args.state),
                          .state_rows = args.state_rows,
                          .entries = address_of(args.entries),
                          .dtype = args.dtype,
                          .gain = floats(args.gain),
                          .epsilon = args.epsilon,
                          .cos_sin = floats(args.cos_sin),
                          .rope_dim = args.rope_dim,
                          .dim = args.dim,
                          .width = args.values.cols,
                          .every = args.every,
                          .overlaps = args.overlaps,
                          .first_position = args.first_position,
                          .live = numbers(args.live.value),
                          .rows = args.values.rows});
}

void CudaQueue::mla_attend(const MlaAttendArgs& args) {
  check_mla_attend(args);
  if (args.rows == 0 || args.heads == 0) return;
  MlaAttendTask task{args.at(kAddresses)};
  const AttendShape shape = shape_of(task);
  // Allocates the size of the largest call at once, since outgrown memory is kept until the queue is destroyed.
  const uint64_t bytes = std::max(attend_scratch_bytes(shape), expected_bytes_);
  task.partial = reinterpret_cast<float*>(workspace_.at_least(bytes));
  const AttendChoice choice = attend_choice(shape, attention_, properties_);
  if (choice == AttendChoice::exact) return attend_exact(stream(), task);
  if (attention_ == Precision::split) return attend_split(stream(), task, choice);
  attend_tensor(stream(), task, choice);
}

bool CudaQueue::attend_expanded(const RopeArgs& rotated, const ExpandedAttendArgs& args) {
  check_attend_expanded(args);
  const uint32_t rows = args.queries.rows;
  if (precision_ == Precision::exact || rows == 0 || args.heads == 0) return false;
  ExpandedAttendTask task{.kv_b = matrix_of(args.kv_b),
                          .cache = address_of(args.cache),
                          .cache_dtype = args.cache_dtype,
                          .queries = inputs_at(args.queries),
                          .out = floats(args.out),
                          .scratch = nullptr,
                          .shape = {.rows = rows,
                                    .heads = args.heads,
                                    .latent_dim = args.latent_dim,
                                    .rope_dim = args.rope_dim,
                                    .nope_dim = args.nope_dim,
                                    .value_dim = args.value_dim,
                                    .positions = args.first_position + rows},
                          .first_position = args.first_position,
                          .scale = args.scale};
  if (!fits_expanded(task.shape, form_of(task.kv_b), properties_) || !pays_to_expand(task.shape)) return false;
  rope(rotated);
  task.scratch = workspace_.at_least(std::max(expanded_scratch_bytes(task.shape), expected_bytes_));
  cuda::attend_expanded(stream(), task);
  return true;
}

void CudaQueue::store_rows(Slice to, Dtype dtype, const Rows& from, const LivePosition& live) {
  check_stored_rows(from, to, dtype, live);
  if (is_empty(from)) return;
  run_store_rows(stream_to(written_behind(to)), store_rows_task(to, dtype, from, live));
}

void CudaQueue::store_latents(Slice to, LatentShape shape, const Rows& from, const LivePosition& live) {
  check_stored_latents(from, to, shape, live);
  if (is_empty(from)) return;
  run_store_latents(stream_to(written_behind(to)), store_latents_task(to, shape, from, live));
}

void CudaQueue::store_fp8_rows(Slice codes, Slice scales, const Rows& from, const LivePosition& live) {
  check_stored_fp8_rows(from, codes, scales, live);
  if (is_empty(from)) return;
  run_store_fp8_rows(stream(), {.codes = reinterpret_cast<uint8_t*>(address_of(codes)),
                                .scales = floats(scales),
                                .from = inputs_at(from),
                                .rows = from.rows,
                                .cols = from.cols,
                                .live = numbers(live.value)});
}

}  // namespace dspack::kernels::cuda
