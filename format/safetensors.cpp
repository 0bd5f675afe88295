#include "format/safetensors.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "format/base/checked.h"
#include "format/json.h"
#include "format/tensor_name.h"

namespace dspack::format {

std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<uint64_t>& shape) {
  std::optional<uint64_t> bits = bits_of(dtype);
  for (const uint64_t dimension : shape) {
    bits = checked_mul(*bits, dimension);
    if (!bits) return std::nullopt;
  }
  if (*bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

void arrange_tensors(std::vector<TensorInfo>& tensors, std::span<const uint32_t> units) {
  DSPACK_CHECK(units.empty() || units.size() == tensors.size(), "every tensor needs its unit");
  struct Place {
    uint64_t bytes = 0;
    uint32_t bits = 0;  // of an element
    uint32_t unit = 0;
    uint32_t use = 0;
    TensorInfo tensor;
  };
  std::vector<Place> places;
  for (size_t i = 0; i < tensors.size(); ++i) {
    places.push_back({.bytes = tensor_bytes(tensors[i].dtype, tensors[i].shape).value(),
                      .bits = bits_of(tensors[i].dtype),
                      .unit = units.empty() ? 0 : units[i],
                      .use = order_of_use(tensors[i].name),
                      .tensor = std::move(tensors[i])});
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    const bool pages = a.bytes % kPageBytes == 0;
    if (pages != (b.bytes % kPageBytes == 0)) return pages;
    // Only whole pages stay aligned whatever lies before them: of the rest the larger elements must come first.
    if (pages && a.unit != b.unit) return a.unit < b.unit;
    if (a.bits != b.bits) return a.bits > b.bits;
    return std::tie(a.unit, a.use, a.tensor.name) < std::tie(b.unit, b.use, b.tensor.name);
  });
  uint64_t offset = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    tensors[i] = std::move(places[i].tensor);
    tensors[i].data = {offset, offset + places[i].bytes};
    offset = tensors[i].data.end;
  }
}

std::string write_header(const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata,
                         uint64_t least_bytes) {
  Json root = {{kHeaderMetadataKey, metadata}};
  root[kHeaderMetadataKey]["format"] = "pt";
  for (const TensorInfo& tensor : tensors) {
    root[tensor.name] = {{"dtype", to_string(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"data_offsets", {tensor.data.begin, tensor.data.end}}};
  }
  std::string json = canonical_json(root);
  // Trailing spaces are the padding that every reader accepts; leading ones are not.
  json.resize(round_up(std::max<uint64_t>(8 + json.size(), least_bytes), kPageBytes) - 8, ' ');
  std::string header(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    header[i] = static_cast<char>((json.size() >> (8 * i)) & 0xff);
  return header + json;
}

}  // namespace dspack::format
