// The class of make_cuda_queue (cuda_queue.h). Its operations are defined in several files: cuda_queue.cpp,
// queue_attention.cpp, queue_experts.cpp.
// Threads, lifetime, errors: as cuda_queue.h.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/host/cuda_queue.h"
#include "kernels/cuda/host/index_space.h"
#include "kernels/cuda/host/queue_memory.h"
#include "kernels/cuda/host/rounded_input.h"
#include "kernels/cuda/host/workspace.h"
#include "kernels/cuda/linear/linear.h"

namespace dspack::kernels::cuda {

/// Most rows for which neighbouring operations of a layer share launches: a decode pass. With more rows launch overhead
/// does not matter, and products may go to cuBLASLt.
inline constexpr uint32_t kMaxFusedRows = 8;

class CudaQueue final : public Queue {
 public:
  CudaQueue(gpu::Properties properties, Precision precision, std::shared_ptr<BlasUse> blas)
      : properties_(std::move(properties)),
        attention_(precision),
        precision_(besides_attention(precision)),
        stream_(gpu::make_stream(properties_.index)) {
    if (blas != nullptr) blas_ = std::make_unique<LinearBlas>(std::move(blas), properties_, precision_);
  }

  void expect(const WorkspaceShape& largest) override {
    expected_bytes_ = shared_workspace_bytes(largest, precision_);
    expects_choices_ = choice_workspace_bytes(largest) > 0;
  }
  void upload(Slice to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, Slice from) override;
  void copy(Slice to, Slice from, uint64_t bytes) override;
  void synchronize() override;
  std::optional<Error> failure() const override { return gpu::failure(); }
  std::shared_ptr<Event> mark() override;
  void wait(const Event& event) override;

  void linear(const Weight& weight, const Rows& x, const Rows& y) override;
  void head_linear_transposed(const HeadLinearArgs& args) override;
  void head_linear(const HeadLinearArgs& args) override;
  void rms_norm(const Rows& x, Slice gain, float epsilon, const Rows& y) override;
  void layer_norm(const Rows& x, Slice gain, Slice bias, float epsilon, const Rows& y) override;
  void rope(const RopeArgs& args) override;
  void choose(const ChooseArgs& args) override;
  void mla_attend(const MlaAttendArgs& args) override;
  void store_in_ring(const StoreInRingArgs& args) override;
  void window_attend(const WindowAttendArgs& args) override;
  void compress(const CompressArgs& args) override;
  void read_streams(const ReadStreamsArgs& args) override;
  void join_streams(const JoinStreamsArgs& args) override;
  void silu_multiply(const Rows& gate, const Rows& up, float limit) override;
  void add(const Rows& y, const Rows& x) override;
  void route(const RouterArgs& args) override;
  void run_experts(const ExpertsArgs& args) override;
  void run_expert_parts(const ExpertPartsArgs& args) override;
  bool run_held_experts(const HeldExpertsArgs& args) override;
  void store_rows(Slice to, Dtype dtype, const Rows& from, const LivePosition& live) override;
  void store_latents(Slice to, LatentShape shape, const Rows& from, const LivePosition& live) override;
  void store_fp8_rows(Slice codes, Slice scales, const Rows& from, const LivePosition& live) override;
  void gather_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) override;
  void scatter_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) override;
  void combine(const Rows& y, const Rows& parts, Slice weights, uint32_t top_k) override;
  void argmax(const Rows& x, Slice ids) override;
  void sample(const SampleArgs& args) override;

  void rms_norm_for(std::span<const Weight> readers, const Rows& x, Slice gain, float epsilon, const Rows& y) override;
  void finish_latents(const LatentsArgs& args, const Weight* query_reader) override;
  void absorb(const RopeArgs& rotated, const HeadLinearArgs& absorbed) override;
  bool attend_expanded(const RopeArgs& rotated, const ExpandedAttendArgs& args) override;
  void route_rows(const Weight& router, const Rows& x, const RouterArgs& args) override;
  void linear_each(std::span<const Product> products, const Rows& x) override;
  void gated_linear(const Weight& gate, const Weight& up, const Rows& x, const Rows& y, const Rows& scratch,
                    float limit) override;
  void add_linear(const Weight& weight, const Rows& x, const Rows& y, const Rows& scratch) override;
  void run_mlp(const MlpArgs& args) override;
  void add_mlp(const MlpArgs& args, const Rows& residual) override;
  void add_moe(const MoeArgs& args) override;

  std::unique_ptr<Step> record(const std::function<void()>& operations) override;
  void run(Step& step) override;

 private:
  /// For operations that may change rounded inputs or the memory that these are in.
  [[nodiscard]] gpu::Stream& stream() {
    rounded_.forget();
    return *stream_;
  }
  /// For operations that do not use the workspace and write only to `written`.
  [[nodiscard]] gpu::Stream& stream_to(const Written& written) {
    rounded_.forget(written);
    return *stream_;
  }
  [[nodiscard]] bool multiplies_on_tensor_cores(const Matrix& weight) const;
  void multiply(const LinearTask& task);
  void multiply_each(std::span<const LinearTask> tasks);
  [[nodiscard]] ExpertsTask experts_task(const ExpertsArgs& args);
  /// Experts chosen by a router, being downloaded to the host.
  struct FetchedIds {
    std::vector<uint32_t> ids;  // empty: the library does not compute these experts
    std::shared_ptr<gpu::Event> arrival = {};
  };
  [[nodiscard]] FetchedIds fetch_ids(const ExpertsTask& task);
  void run_experts_task(const ExpertsTask& task, const ExpertTable& table, const FetchedIds& fetched);
  void run_own_experts(ExpertsTask task);
  [[nodiscard]] bool run_blas_experts(const ExpertsTask& task, std::span<const ExpertEntry> entries,
                                      std::span<const uint32_t> ids);
  [[nodiscard]] bool run_blas_groups(const ExpertsTask& task, std::span<const ExpertEntry> entries,
                                     std::span<const ExpertGroup> groups, bool parts_only, const BlasCard& card);
  [[nodiscard]] std::vector<ExpertGroup> run_large_groups(const ExpertsTask& task, std::span<const ExpertEntry> entries,
                                                          std::span<const ExpertGroup> groups);
  [[nodiscard]] ExpertsTask parts_task(const CudaExpertTable& table, const Rows& x, uint32_t top_k,
                                       const Slice& scratch, const Rows& parts);
  void gate_mlp(const MlpArgs& args);
  RoundedRows rounded(RoundRowsTask rows, Precision rounding);
  RoundedRows place_for_rounded(RoundRowsTask rows, Precision rounding);
  void round_for(std::span<const Weight> readers, RmsNormTask& task);
  /// Copies numbers from the host for the next operation: to device memory if kernels read them often, else to pinned
  /// memory.
  const uint32_t* on_device(std::span<const uint32_t> numbers);
  const uint32_t* visible_to_device(std::span<const uint32_t> numbers);
  void make_room_for(std::span<const uint32_t> numbers);
  std::byte* counters(Workspace& space, uint64_t bytes);
  uint32_t* expert_counters();
  ChooseCounters* choose_counters();

  gpu::Properties properties_;
  Precision attention_;               // for attention over the latent cache
  Precision precision_;               // for everything else
  std::unique_ptr<LinearBlas> blas_;  // null: no cuBLASLt
  bool is_recording_ = false;
  std::unique_ptr<gpu::Stream> stream_;
  Workspace workspace_{properties_.index};
  RoundedInputs rounded_{kMaxRoundedBytes};            // in workspace_, or in its earlier memory
  uint64_t expected_bytes_ = 0;                        // size of workspace_ for the largest call
  Workspace counter_space_{properties_.index};         // ExpertsTask::counters
  Workspace choose_counter_space_{properties_.index};  // ChooseTask::counters
  bool expects_choices_ = false;
  IndexSpace index_space_{properties_.index};
};

}  // namespace dspack::kernels::cuda
