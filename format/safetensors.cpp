#include "format/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "format/base/checked.h"
#include "format/json.h"
#include "format/tensor_name.h"

namespace dspack::format {
namespace {

Error invalid(std::string message) {
  return {ErrorKind::invalid, std::move(message)};
}

Result<std::map<std::string, std::string>> parse_metadata(const Json& value) {
  std::map<std::string, std::string> metadata;
  if (value.is_null()) return metadata;  // occurs in the wild and means: none
  if (!value.is_object()) return invalid("__metadata__ is not an object");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) return invalid(fmt::format("__metadata__ entry \"{}\" is not a string", key));
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

Result<std::vector<uint64_t>> parse_numbers(const Json& object, std::string_view key) {
  TRY_ASSIGN(const Json* array, json_array(object, key));
  std::vector<uint64_t> numbers;
  for (const Json& number : *array) {
    if (!number.is_number_unsigned()) return invalid(fmt::format("\"{}\" has an entry that is no size", key));
    numbers.push_back(number.get<uint64_t>());
  }
  return numbers;
}

Result<TensorInfo> parse_tensor(const std::string& name, const Json& value) {
  if (!value.is_object()) return invalid("its entry is not an object");
  for (const auto& [key, unused] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      return invalid(fmt::format("unknown field \"{}\"", key));
  }
  TRY_ASSIGN(const std::string dtype_name, json_string(value, "dtype"));
  const std::optional<Dtype> dtype = parse_dtype(dtype_name);
  if (!dtype) return invalid(fmt::format("unknown dtype \"{}\"", dtype_name));
  TRY_ASSIGN(std::vector<uint64_t> shape, parse_numbers(value, "shape"));
  TRY_ASSIGN(const std::vector<uint64_t> offsets, parse_numbers(value, "data_offsets"));
  if (offsets.size() != 2 || offsets[1] < offsets[0]) return invalid("data_offsets is not [begin, end]");
  return TensorInfo{name, *dtype, std::move(shape), {offsets[0], offsets[1]}};
}

/// The tensors must cover the byte buffer exactly, in the order of their offsets, each with the bytes its shape needs.
Result<void> check_coverage(const std::vector<TensorInfo>& tensors, uint64_t buffer_bytes) {
  uint64_t end = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.data.begin != end) {
      return invalid(fmt::format("tensor \"{}\" starts at {} where the one before ends at {}: a hole or an overlap",
                                 tensor.name, tensor.data.begin, end));
    }
    const std::optional<uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes)
      return invalid(fmt::format("tensor \"{}\": its shape overflows or is no whole number of bytes", tensor.name));
    if (*bytes != tensor.data.size()) {
      return invalid(fmt::format("tensor \"{}\": shape and dtype need {} bytes, data_offsets give {}", tensor.name,
                                 *bytes, tensor.data.size()));
    }
    end = tensor.data.end;
  }
  if (end != buffer_bytes) {
    return Error{ErrorKind::corrupt, fmt::format("the header describes {} bytes of data, the file has {} ({})", end,
                                                 buffer_bytes, end > buffer_bytes ? "truncated" : "trailing bytes")};
  }
  return {};
}

}  // namespace

std::optional<uint64_t> tensor_bytes(Dtype dtype, const std::vector<uint64_t>& shape) {
  std::optional<uint64_t> bits = bits_of(dtype);
  for (const uint64_t dimension : shape) {
    bits = checked_mul(*bits, dimension);
    if (!bits) return std::nullopt;
  }
  if (*bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

Result<uint64_t> parse_header_length(std::string_view first_8_bytes, uint64_t file_bytes) {
  if (file_bytes < 8 || first_8_bytes.size() < 8) {
    return Error{ErrorKind::corrupt, fmt::format("{} bytes are too few for a safetensors file", file_bytes)};
  }
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(first_8_bytes[i])) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    return invalid(
        fmt::format("header length {} is over the limit of {}: not a safetensors file?", length, kMaxHeaderBytes));
  }
  if (length > file_bytes - 8) {
    return Error{ErrorKind::corrupt,
                 fmt::format("header length {} runs past the end of the file ({} bytes)", length, file_bytes)};
  }
  return length;
}

Result<SafetensorsHeader> parse_header(std::string_view json, uint64_t file_bytes) {
  TRY_ASSIGN(const Json root, parse_json(json));
  if (!root.is_object()) return invalid("the header is not a JSON object");
  SafetensorsHeader header;
  header.data_start = 8 + json.size();
  if (file_bytes < header.data_start) {
    return Error{ErrorKind::corrupt, fmt::format("the header has {} bytes with its length, the whole file {}",
                                                 header.data_start, file_bytes)};
  }
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadataKey) {
      TRY_ASSIGN(header.metadata, parse_metadata(value));
      continue;
    }
    auto tensor = parse_tensor(name, value);
    if (!tensor) return tensor.error().in(fmt::format("tensor \"{}\"", name));
    header.tensors.push_back(std::move(tensor).value());
  }
  // Empty tensors share their begin with the next one: by end as well, so that they come first.
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.data.begin, a.data.end, a.name) < std::tie(b.data.begin, b.data.end, b.name);
  });
  TRY(check_coverage(header.tensors, file_bytes - header.data_start));
  return header;
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
  Json root = {{kMetadataKey, metadata}};
  root[kMetadataKey]["format"] = "pt";
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
