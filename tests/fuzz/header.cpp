// The header of a safetensors file. Input: its JSON. The file's length is made to fit what the header claims, so that
// the checks behind the length are reached.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "format/base/size.h"
#include "format/safetensors.h"
#include "tests/fuzz/shard.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using format::SafetensorsHeader;
using format::TensorInfo;

namespace {

void check_length(std::string_view text) {
  for (const uint64_t file_bytes : {uint64_t{0}, uint64_t{8}, text.size() + uint64_t{0}, uint64_t{1} << 40}) {
    const auto length = format::parse_header_length(text.substr(0, 8), file_bytes);
    if (!length) {
      fuzz::check_refusal(length.error());
      continue;
    }
    DSPACK_CHECK(*length <= format::kMaxHeaderBytes && *length + 8 <= file_bytes, "a header outside its file");
  }
}

/// Whether `bytes` is what shape and dtype need: computed apart from the program's own way, which is under test.
bool is_size_of(const TensorInfo& tensor, uint64_t bytes) {
  __extension__ using Wide = unsigned __int128;
  Wide bits = bits_of(tensor.dtype);
  for (const uint64_t dimension : tensor.shape) {
    bits *= dimension;
    if (bits == 0) return bytes == 0;
    if (bits > Wide{8} * std::numeric_limits<uint64_t>::max()) return false;
  }
  return bits == Wide{8} * bytes;
}

/// Tensors cover the buffer of `bytes` bytes, each with what its shape needs.
void check_coverage(const std::vector<TensorInfo>& tensors, uint64_t bytes) {
  uint64_t end = 0;
  for (const TensorInfo& tensor : tensors) {
    DSPACK_CHECK(tensor.data.begin == end && tensor.data.end >= end, tensor.name);
    DSPACK_CHECK(is_size_of(tensor, tensor.data.size()), tensor.name);
    end = tensor.data.end;
  }
  DSPACK_CHECK(end == bytes, "the tensors do not cover the buffer");
}

void sort_by_name(std::vector<TensorInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

/// What write_header says of `tensors` is what parse_header reads.
void check_written(std::vector<TensorInfo> tensors, uint64_t data_bytes) {
  const std::string text = format::write_header(tensors);
  const std::optional<uint64_t> file_bytes = checked_add(text.size(), data_bytes);
  if (!file_bytes) return;
  DSPACK_CHECK(text.size() % kPageBytes == 0, "data that does not start on a page");
  const auto length = format::parse_header_length(text, *file_bytes);
  DSPACK_CHECK(length.has_value() && *length + 8 == text.size(), "a wrong length was written");
  const auto again = format::parse_header(std::string_view(text).substr(8), *file_bytes);
  DSPACK_CHECK(again.has_value(), again.error().message);
  DSPACK_CHECK(again->data_start == text.size(), "a wrong data_start");
  check_coverage(again->tensors, data_bytes);
  std::vector<TensorInfo> read = again->tensors;
  sort_by_name(read);
  sort_by_name(tensors);
  DSPACK_CHECK(read.size() == tensors.size(), "a tensor was lost");
  for (size_t i = 0; i < read.size(); ++i) {
    const TensorInfo& a = read[i];
    const TensorInfo& b = tensors[i];
    DSPACK_CHECK(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.data == b.data, b.name);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json = fuzz::as_text(data, size);
  check_length(json);
  const uint64_t own_bytes = 8 + json.size();
  for (const uint64_t file_bytes : {own_bytes, fuzz::claimed_file_bytes(json)}) {
    const auto header = format::parse_header(json, file_bytes);
    if (!header) {
      fuzz::check_refusal(header.error());
      continue;
    }
    DSPACK_CHECK(header->data_start == own_bytes, "a wrong data_start");
    const uint64_t data_bytes = file_bytes - own_bytes;
    check_coverage(header->tensors, data_bytes);
    check_written(header->tensors, data_bytes);
    std::vector<TensorInfo> arranged = header->tensors;
    format::arrange_tensors(arranged);
    check_coverage(arranged, data_bytes);
    check_written(std::move(arranged), data_bytes);
  }
  return 0;
}
