// Compares a pass with a recording while it runs, piece by piece: only one piece of a tensor and of its reference is in
// memory.
// Threads: single-thread. Lifetime: borrows queue and recording. Errors: invalid (the recording's shapes contradict the
// model, or it has no tensor of this model), those of reading the recording.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/validation/comparison.h"
#include "runtime/validation/recording.h"
#include "runtime/weights/trace.h"

namespace dspack::runtime {

struct ComparerOptions {
  std::optional<double> tolerance;  // unset: default_tolerance of each tensor's type
  /// Give every module the reference's input, if recorded, so that errors do not accumulate.
  bool inject = false;
};

class Comparer final : public Trace {
 public:
  Comparer(kernels::Queue& queue, const ModelConfig& config, const Recording& reference, uint32_t tokens,
           const ComparerOptions& options)
      : queue_(queue), config_(config), reference_(reference), tokens_(tokens), options_(options) {}

  [[nodiscard]] uint32_t tokens() const override { return tokens_; }
  void input(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) override;
  void output(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) override;
  void routing(std::string_view module, const Routing& routing) override;
  [[nodiscard]] Result<void> status() const override { return status_; }

  /// The result. Precondition: the pass has ended without error.
  [[nodiscard]] Result<Comparison> finish();

 private:
  struct Entry {
    ComparedModule found;
    uint64_t input_rows = 0;  // rows compared so far
    uint64_t output_rows = 0;
    size_t finished = 0;  // position in the order of first outputs, from 1
  };
  struct ComparedRows {
    std::vector<double> here;
    std::vector<double> reference;
  };
  Entry& entry(std::string_view module);
  void finish_entry(Entry& entry, uint32_t rows);
  [[nodiscard]] const format::TensorInfo* find_output(std::string_view module) const;
  [[nodiscard]] double tolerance_of(Dtype dtype) const;
  Result<bool> same_rows(std::string_view module, const format::TensorInfo& tensor, uint64_t rows, uint64_t cols) const;
  Result<ComparedRows> read_piece(const format::TensorInfo& tensor, const kernels::Rows& rows,
                                  uint64_t first_row) const;
  Result<void> compare_input(std::string_view module, const kernels::Rows& rows, uint32_t total_rows);
  Result<void> compare_output(std::string_view module, const kernels::Rows& rows, uint32_t total_rows);
  void compare_logits(const ComparedRows& piece, uint64_t cols);
  // nullptr: not in the recording.
  struct RouterTensors {
    const format::TensorInfo* logits = nullptr;   // [tokens, experts]
    const format::TensorInfo* ids = nullptr;      // [tokens, top_k]
    const format::TensorInfo* weights = nullptr;  // [tokens, top_k]
  };
  [[nodiscard]] RouterTensors find_routing(std::string_view module) const;
  [[nodiscard]] Result<void> check_routing(const RouterTensors& tensors) const;
  // The routes of some tokens, [rows, top_k] each.
  struct Choices {
    std::vector<uint32_t> ids;
    std::vector<double> weights;
    std::vector<int64_t> wanted_ids;
    std::vector<double> wanted_weights;
  };
  [[nodiscard]] Result<Choices> read_choices(const RouterTensors& tensors, const Routing& routing,
                                             uint64_t first_row) const;
  Result<void> compare_routing(std::string_view module, const Routing& routing);
  [[nodiscard]] NotCompared explain(const format::TensorInfo& tensor) const;

  kernels::Queue& queue_;
  const ModelConfig& config_;
  const Recording& reference_;
  uint32_t tokens_;
  ComparerOptions options_;
  std::vector<Entry> entries_;
  size_t finished_ = 0;
  std::map<std::string, size_t, std::less<>> places_;  // module -> index in entries_
  std::set<std::string, std::less<>> compared_;        // names of reference tensors
  std::optional<LogitAgreement> logits_;
  Result<void> status_;
};

}  // namespace dspack::runtime
