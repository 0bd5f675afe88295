// A recording by this program or another: a safetensors file, written during a pass, whose tensors are read piece by
// piece as values.
// Threads: thread-compatible. Lifetime: owns its file. Errors: not_found, io; invalid or corrupt (not a well-formed
// safetensors file), unsupported (an element type that cannot be compared); each names the file.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/file_system.h"
#include "format/safetensors.h"
#include "format/tensor_file.h"
#include "runtime/model/model.h"

namespace dspack::runtime {

class Recording {
 public:
  /// Strips a leading "language_model." from tensor names, unless the result exists already.
  [[nodiscard]] static Result<Recording> open(format::FileSystem& files, const format::Path& path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::map<std::string, format::TensorInfo, std::less<>>& tensors() const { return tensors_; }
  /// nullptr: no such tensor.
  [[nodiscard]] const format::TensorInfo* find(std::string_view name) const;

  /// Values [first, first + count) of a tensor of F64, F32, BF16 or F16, exact.
  [[nodiscard]] Result<std::vector<double>> numbers(const format::TensorInfo& tensor, uint64_t first,
                                                    uint64_t count) const;
  /// Values [first, first + count) of a tensor of I64, I32, U32, I16, U16, I8 or U8.
  [[nodiscard]] Result<std::vector<int64_t>> integers(const format::TensorInfo& tensor, uint64_t first,
                                                      uint64_t count) const;

  /// The recorded tokens: "input_ids", or the embedding's input. nullopt: the recording has neither.
  [[nodiscard]] Result<std::optional<std::vector<uint32_t>>> input_ids() const;

 private:
  [[nodiscard]] Result<std::vector<std::byte>> read(const format::TensorInfo& tensor, uint64_t first,
                                                    uint64_t count) const;

  std::string path_;
  std::unique_ptr<format::ReadFile> file_;
  uint64_t data_start_ = 0;
  std::map<std::string, format::TensorInfo, std::less<>> tensors_;
};

[[nodiscard]] bool is_number(Dtype dtype);   // types that Recording::numbers reads
[[nodiscard]] bool is_integer(Dtype dtype);  // types that Recording::integers reads
[[nodiscard]] uint64_t value_count(const format::TensorInfo& tensor);
/// Whether its innermost dimension is `cols`.
[[nodiscard]] bool has_width(const format::TensorInfo& tensor, uint64_t cols);
/// "[1, 17, 192]"
[[nodiscard]] std::string shape_text(const std::vector<uint64_t>& shape);

struct RecordPlan {
  std::vector<uint32_t> tokens;
  std::vector<std::string> patterns;  // for module names to record; empty: all modules
  format::Path path;
};

/// Writes the inputs and outputs of every module of a pass into a safetensors file during the pass: only one piece of a
/// tensor is in memory. The names are those of transformers' modules: "<module>.input.0", "<module>.output"
/// (".output.0" if the module returns a tuple), and "input_ids". Borrows queue and file system. Errors: also budget.
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
