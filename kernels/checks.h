// Checks that the shapes of an operation fit together and into their buffers. Every backend calls these first, so that
// the rules exist once. Cost: a few comparisons per operation. Threads: thread-safe. Errors: a mismatch is a
// programming error (DSPACK_CHECK).
#pragma once

#include <span>

#include "kernels/ops.h"

namespace dspack::kernels {

/// Which side of a copy the index applies to.
enum class IndexUse { gather, scatter };

/// Checks that `bytes` bytes from `place` on lie inside its buffer.
void check_extent(Slice place, uint64_t bytes);

void check_linear(const Weight& weight, const Rows& x, const Rows& y);
void check_head_linear(const HeadLinearArgs& args);
void check_head_linear_transposed(const HeadLinearArgs& args);
void check_rms_norm(const Rows& x, Slice gain, const Rows& y);
void check_layer_norm(const Rows& x, Slice gain, Slice bias, const Rows& y);
void check_rope(const RopeArgs& args);
void check_choose(const ChooseArgs& args);
void check_mla_attend(const MlaAttendArgs& args);
void check_window_attend(const WindowAttendArgs& args);
void check_store_in_ring(const StoreInRingArgs& args);
void check_compress(const CompressArgs& args);
void check_read_streams(const ReadStreamsArgs& args);
void check_join_streams(const JoinStreamsArgs& args);
void check_attend_expanded(const ExpandedAttendArgs& args);
void check_stored_rows(const Rows& rows, Slice stored, Dtype dtype, const LivePosition& live);
/// Rows in FP8 (latent_rows.h).
void check_stored_latents(const Rows& rows, Slice stored, LatentShape shape, const LivePosition& live);
void check_stored_fp8_rows(const Rows& rows, Slice codes, Slice scales, const LivePosition& live);
void check_same_shape(const Rows& a, const Rows& b);
void check_route(const RouterArgs& args);
void check_indexed_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows, IndexUse use);
void check_argmax(const Rows& x, Slice ids);
void check_sample(const SampleArgs& args);
/// `scratch_bytes`: the device's requirement for this call.
void check_experts(const ExpertsArgs& args, uint64_t scratch_bytes);
void check_expert_parts(const ExpertPartsArgs& args, uint64_t scratch_bytes);
void check_held_experts(const HeldExpertsArgs& args, uint64_t scratch_bytes);
void check_mlp(const MlpArgs& args);
void check_combine(const Rows& y, const Rows& parts, Slice weights, uint32_t top_k);

}  // namespace dspack::kernels
