// Runs routed experts from a store: reads back the routed ids, groups the tokens by expert, so that each expert is
// leased and multiplied once for all of its tokens, and adds up the results in the router's order. Experts are computed
// as they become ready: those in memory while the others are read.
// Scratch memory is fixed when the executor is made: longer inputs go in waves of tokens, and an expert multiplies a
// tile of tokens at a time. None of it changes a result, since every row is computed by itself. Threads: single-thread.
// Lifetime: borrows queue and store. Errors: those of the store; cancelled.
#pragma once

#include <memory>
#include <vector>

#include "runtime/experts/decode_bound.h"
#include "runtime/experts/executor.h"
#include "runtime/experts/expert_store.h"
#include "runtime/experts/trace/route_recorder.h"

namespace dspack::runtime {

struct ExecutorShape {
  uint32_t hidden = 0;
  uint32_t expert_inner = 0;
  uint32_t experts = 0;
  uint32_t top_k = 0;
  uint32_t wave_tokens = 4096;  // for which an expert is read once; V3: 8 * 7168 FP32 = 229 kB each
  uint32_t tile_tokens = 256;   // that an expert multiplies at once; V3: 74 kB each
};

class GroupedExecutor final : public ExpertExecutor {
 public:
  [[nodiscard]] static Result<std::unique_ptr<GroupedExecutor>> make(kernels::Device& device, kernels::Queue& queue,
                                                                     ExpertStore& store, const ExecutorShape& shape);

  void begin_pass(const ExpertPass& pass) override;
  void accept_drafts(uint32_t rows) override;
  [[nodiscard]] MissCounts miss_counts() const override { return store_.miss_counts(); }
  [[nodiscard]] Result<void> run(const RoutedTokens& tokens, const kernels::Rows& y,
                                 const std::stop_token& stop) override;
  [[nodiscard]] bool wants_forecast() const override { return store_.wants_forecast(); }
  void expect(LayerId layer, std::span<const ExpertId> experts) override { store_.expect(layer, experts); }

  /// Writes down what the routers pick from now on; nullptr: nobody does. `run` also fails where recording does.
  void set_recorder(RouteRecorder* recorder) { recorder_ = recorder; }

  [[nodiscard]] uint64_t scratch_bytes() const { return scratch_->size_bytes(); }
  /// Times of all decode passes.
  [[nodiscard]] const DecodeBound& decode_bound() const { return decode_bound_; }
  /// What an executor of this shape would take.
  [[nodiscard]] static uint64_t scratch_bytes_for(const ExecutorShape& shape) { return lay_out(shape).size_bytes; }

 private:
  // In scratch_.
  struct Places {
    uint64_t input = 0, gate = 0, up = 0, output = 0, parts = 0;
    uint64_t size_bytes = 0;
  };
  static Places lay_out(const ExecutorShape& shape);
  GroupedExecutor(kernels::Queue& queue, ExpertStore& store, const ExecutorShape& shape,
                  std::unique_ptr<kernels::Buffer> scratch);

  // The tokens of one expert within a wave.
  struct Group {
    ExpertId expert;
    TraceScope trace;
    std::vector<uint32_t> tokens;  // rows of x
    std::vector<uint32_t> parts;   // rows of parts_: token * top_k + slot
  };

  Result<std::vector<uint32_t>> chosen_experts(const RoutedTokens& tokens);
  Result<std::vector<Group>> group_by_expert(const RoutedTokens& wave, std::span<const uint32_t> tokens_of_expert);
  void multiply(const ExpertWeights& expert, const Group& group, const kernels::Rows& x);
  void multiply_tile(const ExpertWeights& expert, const Group& group, size_t first, size_t count,
                     const kernels::Rows& x);
  struct Wave {
    RoutedTokens tokens;
    uint32_t first_row = 0;  // within the pass
    kernels::Rows y;
  };
  Result<void> run_wave(const Wave& wave, std::span<const uint32_t> tokens_of_expert, const std::stop_token& stop);
  /// `meanwhile` (empty: nothing) is called when there is something to wait for, or at the end.
  Result<void> compute_as_they_come(const Wave& wave, std::span<const Group> groups,
                                    const std::function<void()>& meanwhile, ExpertTimes& times,
                                    const std::stop_token& stop);
  [[nodiscard]] kernels::Rows rows_at(uint64_t offset, uint32_t rows, uint32_t cols) const;

  kernels::Queue& queue_;
  ExpertStore& store_;
  ExecutorShape shape_;
  RouteRecorder* recorder_ = nullptr;
  std::unique_ptr<kernels::Buffer> scratch_;
  DecodeBound decode_bound_;
  Places at_;
};

}  // namespace dspack::runtime
