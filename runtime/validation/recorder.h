// Writes the inputs and outputs of every module of a pass into a safetensors file during the pass: only one piece of a
// tensor is in memory. The names are those of transformers' modules: "<module>.input.0", "<module>.output" (".output.0"
// if the module returns a tuple), and "input_ids".
// Threads: single-thread. Lifetime: borrows queue and file system. Errors: invalid (no module matches the patterns),
// io, budget.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "format/tensor_file.h"
#include "runtime/model/model.h"

namespace dspack::runtime {

struct RecordPlan {
  std::vector<uint32_t> tokens;
  std::vector<std::string> patterns;  // for module names to record; empty: all modules
  format::Path path;
};

class Recorder final : public Trace {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Recorder>> create(kernels::Queue& queue, format::FileSystem& files,
                                                                const Model& model, const RecordPlan& plan);

  [[nodiscard]] uint32_t tokens() const override { return tokens_; }
  void input(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) override;
  void output(std::string_view module, const kernels::Rows& rows, uint32_t total_rows) override;
  void routing(std::string_view module, const Routing& routing) override;
  [[nodiscard]] Result<void> status() const override { return status_; }

  /// Completes the file. Precondition: the pass has ended without error.
  [[nodiscard]] Result<void> seal(const std::map<std::string, std::string>& metadata);

  [[nodiscard]] size_t tensors() const { return numbers_.size(); }

 private:
  Recorder(kernels::Queue& queue, uint32_t tokens) : queue_(queue), tokens_(tokens) {}
  void store(const std::string& tensor, std::string_view module, const kernels::Rows& rows, uint32_t total_rows);
  void append(const std::string& tensor, Dtype dtype, const std::vector<uint64_t>& shape,
              std::span<const std::byte> bytes);

  kernels::Queue& queue_;
  uint32_t tokens_;
  std::set<std::string, std::less<>> wanted_;  // modules
  std::unique_ptr<format::TensorFileWriter> file_;
  std::map<std::string, size_t> numbers_;  // tensor -> its number in the file
  Result<void> status_;
};

}  // namespace dspack::runtime
