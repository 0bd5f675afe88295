// A recording by this program or another: a safetensors file whose tensors are read piece by piece as values.
// Threads: thread-compatible. Lifetime: owns its file. Errors: not_found, io; invalid or corrupt (not a well-formed
// safetensors file), unsupported (an element type that cannot be compared); each names the file.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/file_system.h"
#include "format/safetensors.h"

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

}  // namespace dspack::runtime
