// One safetensors file: its header read by every rule of the reference reader, and written with page-aligned data.
// Threads: thread-safe (pure functions). Errors: invalid (breaks a rule), corrupt (length differs from the header's),
// budget (more tensors, metadata or axes than json.h allows).
// Source: huggingface/safetensors README "Format" and the checks of its reader (safetensors/src/tensor.rs).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/ids.h"
#include "format/base/page_buffer.h"
#include "format/base/result.h"
#include "format/dtype.h"

namespace dspack::format {

/// The header entry that is not a tensor.
inline constexpr char kMetadataKey[] = "__metadata__";
/// The reference reader refuses longer headers.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

/// One tensor of a file. `data` is relative to the byte buffer that follows the header.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::u8;
  std::vector<uint64_t> shape;  // row-major, outermost first; empty for a scalar
  ByteRange data;
};

struct SafetensorsHeader {
  uint64_t data_start = 0;          // 8 + header length: file offset of the byte buffer
  std::vector<TensorInfo> tensors;  // by offset; they cover the buffer without holes or overlap
  std::map<std::string, std::string> metadata;
};

/// Length of the JSON header from the first 8 bytes of a file. Errors: invalid, corrupt (runs past the file).
[[nodiscard]] Result<uint64_t> parse_header_length(std::string_view first_8_bytes, uint64_t file_bytes);

/// Parses the JSON header (without its 8-byte length) of a file of `file_bytes` bytes.
[[nodiscard]] Result<SafetensorsHeader> parse_header(std::string_view json, uint64_t file_bytes);

/// Bytes of a tensor; nullopt if they overflow or are not a whole number.
[[nodiscard]] std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<uint64_t>& shape);

/// Sorts tensors into the order in which we store them and sets their `data`: sizes that are multiples of a page first,
/// so that large matrices start on pages; then larger elements before smaller, so that all are aligned; then in order
/// of use, so that a source in that order can be copied and digested front to back; then by name. `units`, parallel to
/// `tensors` as given, keeps together what is read together, such as an expert: whole pages are sorted by unit first,
/// the others by unit within one element size. Empty: one unit. Precondition: every tensor's shape and dtype have a
/// size (tensor_bytes).
void arrange_tensors(std::vector<TensorInfo>& tensors, std::span<const uint32_t> units = {});

/// Length, JSON and padding spaces of a file that holds `tensors` (arranged, contiguous). The data starts at a multiple
/// of kPageBytes that is at least `least_bytes`. `__metadata__` is {"format":"pt"}, which transformers requires, and
/// the entries of `metadata`.
[[nodiscard]] std::string write_header(const std::vector<TensorInfo>& tensors,
                                       const std::map<std::string, std::string>& metadata = {},
                                       uint64_t least_bytes = 0);

}  // namespace dspack::format
