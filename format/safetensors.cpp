#include "format/safetensors.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "format/base/size.h"
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
  struct SortEntry {
    uint64_t bytes = 0;
    uint32_t bits = 0;  // per element
    uint32_t unit = 0;
    uint32_t use = 0;
    TensorInfo tensor;
  };
  std::vector<SortEntry> places;
  for (size_t i = 0; i < tensors.size(); ++i) {
    places.push_back({.bytes = tensor_bytes(tensors[i].dtype, tensors[i].shape).value(),
                      .bits = bits_of(tensors[i].dtype),
                      .unit = units.empty() ? 0 : units[i],
                      .use = order_of_use(tensors[i].name),
                      .tensor = std::move(tensors[i])});
  }
  std::sort(places.begin(), places.end(), [](const SortEntry& a, const SortEntry& b) {
    const bool pages = a.bytes % kPageBytes == 0;
    if (pages != (b.bytes % kPageBytes == 0)) return pages;
    // Only whole pages stay aligned whatever precedes them: among the others the larger elements must come first.
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
  // Every reader accepts trailing spaces as padding, but not leading ones.
  json.resize(round_up(std::max<uint64_t>(8 + json.size(), least_bytes), kPageBytes) - 8, ' ');
  std::string header(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    header[i] = static_cast<char>((json.size() >> (8 * i)) & 0xff);
  return header + json;
}

// Reading headers: straight from the parser's events into the list of tensors. A tree in between would take twenty
// times the memory of the text.
namespace {

Error too_many(uint64_t most, std::string_view what) {
  return {ErrorKind::budget, fmt::format("more than {} {}, the most that is read", most, what)};
}

/// Builds a header from the parser's events. The result is complete if parsing ended without a problem.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  bool null() override {
    // Some files have null as metadata, which means none.
    if (place_ == HeaderPosition::root && in_metadata_) return true;
    return other_value();
  }
  bool boolean(bool /*value*/) override { return other_value(); }
  bool number_integer(number_integer_t /*value*/) override { return other_value(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return other_value(); }
  bool binary(binary_t& /*value*/) override { return false; }  // only in binary encodings

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != HeaderPosition::list) return other_value();
    std::vector<uint64_t>& numbers = field_ == Field::shape ? tensor().shape : offsets_;
    if (numbers.size() == kMaxDimensions)
      return refuse(too_many(kMaxDimensions, fmt::format("numbers in \"{}\"", kNames[index(field_)])));
    numbers.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == HeaderPosition::metadata) {
      header_.metadata[metadata_key_] = std::move(value);
      return true;
    }
    if (place_ != HeaderPosition::tensor || field_ != Field::dtype) return other_value();
    const std::optional<Dtype> dtype = parse_dtype(value);
    if (!dtype) return refuse(invalid(fmt::format("unknown dtype \"{}\"", value)));
    tensor().dtype = *dtype;
    return true;
  }

  bool start_object(size_t /*elements*/) override {
    if (place_ == HeaderPosition::nowhere) {
      place_ = HeaderPosition::root;
      return true;
    }
    if (place_ != HeaderPosition::root) return other_value();
    place_ = in_metadata_ ? HeaderPosition::metadata : HeaderPosition::tensor;
    return true;
  }

  bool end_object() override {
    if (place_ == HeaderPosition::tensor && !finish_tensor()) return false;
    place_ = place_ == HeaderPosition::root ? HeaderPosition::nowhere : HeaderPosition::root;
    return true;
  }

  bool start_array(size_t /*elements*/) override {
    if (place_ != HeaderPosition::tensor || field_ == Field::dtype) return other_value();
    place_ = HeaderPosition::list;
    return true;
  }

  bool end_array() override {
    place_ = HeaderPosition::tensor;
    return true;
  }

  bool key(string_t& name) override {
    switch (place_) {
      case HeaderPosition::metadata: return metadata_key(name);
      case HeaderPosition::tensor: return tensor_key(name);
      default: return root_key(name);
    }
  }

  bool parse_error(size_t /*position*/, const std::string& /*token*/, const Json::exception& exception) override {
    problem_ = json_error(exception);
    return false;
  }

  [[nodiscard]] const Error& problem() const { return problem_; }
  [[nodiscard]] SafetensorsHeader take() { return std::move(header_); }

 private:
  enum class HeaderPosition { nowhere, root, metadata, tensor, list };
  enum class Field { dtype, shape, offsets };
  static constexpr std::string_view kNames[] = {"dtype", "shape", "data_offsets"};
  static size_t index(Field field) { return static_cast<size_t>(field); }

  TensorInfo& tensor() { return header_.tensors.back(); }

  /// Always false, which stops the parser.
  bool refuse(Error problem) {
    const bool of_tensor = place_ == HeaderPosition::tensor || place_ == HeaderPosition::list;
    problem_ = of_tensor ? problem.in(fmt::format("tensor \"{}\"", tensor().name)) : std::move(problem);
    return false;
  }

  bool duplicate(std::string_view key) {
    problem_ = invalid(fmt::format("duplicate key \"{}\"", key));
    return false;
  }

  bool root_key(string_t& name) {
    in_metadata_ = name == kMetadataKey;
    if (in_metadata_) {
      if (had_metadata_) return duplicate(name);
      had_metadata_ = true;
      return true;
    }
    if (header_.tensors.size() == kMaxTensors) return refuse(too_many(kMaxTensors, "tensors"));
    header_.tensors.push_back({.name = std::move(name), .dtype = Dtype::u8, .shape = {}, .data = {}});
    offsets_.clear();
    std::fill(std::begin(has_), std::end(has_), false);
    return true;
  }

  bool metadata_key(string_t& name) {
    if (header_.metadata.size() == kMaxMetadataEntries)
      return refuse(too_many(kMaxMetadataEntries, "entries of __metadata__"));
    if (!header_.metadata.try_emplace(name).second) return duplicate(name);
    metadata_key_ = std::move(name);
    return true;
  }

  bool tensor_key(const string_t& name) {
    const auto* const known = std::find(std::begin(kNames), std::end(kNames), name);
    if (known == std::end(kNames)) return refuse(invalid(fmt::format("unknown field \"{}\"", name)));
    const auto number = static_cast<size_t>(known - std::begin(kNames));
    if (has_[number]) return duplicate(name);
    has_[number] = true;
    field_ = static_cast<Field>(number);
    return true;
  }

  bool finish_tensor() {
    for (size_t i = 0; i < std::size(has_); ++i)
      if (!has_[i]) return missing(static_cast<Field>(i));
    if (offsets_.size() != 2 || offsets_[1] < offsets_[0]) return refuse(invalid("data_offsets is not [begin, end]"));
    tensor().data = {offsets_[0], offsets_[1]};
    return true;
  }

  bool missing(Field field) {
    return refuse(invalid(fmt::format("\"{}\" is missing or not {}", kNames[index(field)],
                                      field == Field::dtype ? "a string" : "an array")));
  }

  /// Refuses a value whose kind is not allowed in this place.
  bool other_value() {
    switch (place_) {
      case HeaderPosition::nowhere: return refuse(invalid("the header is not a JSON object"));
      case HeaderPosition::root:
        if (in_metadata_) return refuse(invalid("__metadata__ is not an object"));
        return refuse(invalid("its entry is not an object").in(fmt::format("tensor \"{}\"", tensor().name)));
      case HeaderPosition::metadata:
        return refuse(invalid(fmt::format("__metadata__ entry \"{}\" is not a string", metadata_key_)));
      case HeaderPosition::tensor: return missing(field_);
      case HeaderPosition::list: break;
    }
    return refuse(invalid(fmt::format("\"{}\" has an entry that is no size", kNames[index(field_)])));
  }

  SafetensorsHeader header_;
  HeaderPosition place_ = HeaderPosition::nowhere;
  Field field_ = Field::dtype;  // field of the tensor whose value comes next
  bool has_[std::size(kNames)] = {};
  bool in_metadata_ = false;  // the current key of the root is the metadata's
  bool had_metadata_ = false;
  std::string metadata_key_;
  std::vector<uint64_t> offsets_;
  Error problem_ = invalid("no JSON");
};

/// Refuses two tensors of one name, which need not overlap.
Result<void> check_names(const std::vector<TensorInfo>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors)
    names.emplace_back(tensor.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return {};
  return invalid(fmt::format("duplicate key \"{}\"", *twice));
}

/// The tensors must cover the byte buffer exactly, in the order of their offsets, each with the bytes that its shape
/// needs.
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
  if (file_bytes < 8 || json.size() > file_bytes - 8) {
    return Error{ErrorKind::corrupt,
                 fmt::format("a header of {} bytes runs past the end of the file ({} bytes)", json.size(), file_bytes)};
  }
  TRY(check_no_nul(json));
  // Some JSON readers skip blanks and a byte order mark.
  if (!json.empty() && std::string_view(" \t\r\n\xef").find(json.front()) != std::string_view::npos)
    return invalid("the header does not begin with \"{\", as the format asks");
  HeaderReader reader;
  if (!Json::sax_parse(json.begin(), json.end(), &reader)) return reader.problem();
  SafetensorsHeader header = reader.take();
  header.data_start = 8 + json.size();
  TRY(check_names(header.tensors));
  // An empty tensor begins where the next one does: sorting by end as well puts it first.
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.data.begin, a.data.end, a.name) < std::tie(b.data.begin, b.data.end, b.name);
  });
  TRY(check_coverage(header.tensors, file_bytes - header.data_start));
  return header;
}

}  // namespace dspack::format
