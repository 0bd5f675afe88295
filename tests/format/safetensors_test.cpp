#include <doctest/doctest.h>

#include "format/json.h"
#include "format/safetensors.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::safetensors_test {

using namespace dspack;
using format::parse_header;
using format::TensorInfo;

namespace {

std::string length_bytes(uint64_t length) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    bytes[i] = static_cast<char>((length >> (8 * i)) & 0xff);
  return bytes;
}

/// Parses a header over `data_bytes` bytes of data.
Result<format::SafetensorsHeader> parse(std::string_view json, uint64_t data_bytes) {
  return parse_header(json, 8 + json.size() + data_bytes);
}

}  // namespace

TEST_CASE("safetensors: the length field is checked before anything is read") {
  CHECK(*format::parse_header_length(length_bytes(10), 18) == 10);
  CHECK(format::parse_header_length(length_bytes(10), 17).error().kind == ErrorKind::corrupt);
  CHECK(format::parse_header_length(length_bytes(100'000'001), ~0ULL).error().kind == ErrorKind::invalid);
  CHECK(format::parse_header_length(length_bytes(~0ULL), ~0ULL).error().kind == ErrorKind::invalid);
  CHECK_FALSE(format::parse_header_length("", 0).has_value());
  CHECK_FALSE(format::parse_header_length("1234567", 7).has_value());
}

TEST_CASE("safetensors: a file that is said to be shorter than its header is corrupt") {
  for (const uint64_t bytes : {0, 1, 8, 9}) {
    const auto header = parse_header("{}", bytes);
    REQUIRE_FALSE(header.has_value());
    CHECK(header.error().kind == ErrorKind::corrupt);
  }
  CHECK(parse_header("{}", 10).has_value());
}

TEST_CASE("safetensors: a NUL byte is no end of the header") {
  using namespace std::string_view_literals;
  for (const std::string_view text : {"{}\0"sv, "{}\0  "sv, "{\0}"sv}) {
    const auto header = parse(text, 0);
    REQUIRE_FALSE(header.has_value());
    CHECK(header.error().message.find("a NUL byte at ") != std::string::npos);
  }
}

TEST_CASE("safetensors: what the reference reader accepts, we accept") {
  const auto header = parse(R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},"__metadata__":{"format":"pt"},)"
                            R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                            R"("s":{"dtype":"BF16","shape":[],"data_offsets":[9,11]},)"
                            R"("e":{"dtype":"F32","shape":[0,7],"data_offsets":[9,9]}}     )",
                            11);
  REQUIRE(header.has_value());
  REQUIRE(header->tensors.size() == 4);
  CHECK(header->tensors[0].name == "a");
  CHECK(header->tensors[1].name == "b");
  CHECK(header->tensors[2].name == "e");  // empty, before the tensor that begins where it stands
  CHECK(header->tensors[3].name == "s");
  CHECK(header->metadata.at("format") == "pt");
  CHECK(parse(R"({"__metadata__":{}})", 0).has_value());
  CHECK(parse(R"({"__metadata__":null})", 0).has_value());
  CHECK(parse(R"({"h":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1).has_value());
}

TEST_CASE("safetensors: every rule of the reference reader holds") {
  struct Case {
    const char* json;
    uint64_t data_bytes;
    const char* message;
  };
  const Case cases[] = {
      {"\xff{}", 0, "not valid JSON"},
      {"[]", 0, "not a JSON object"},
      {R"({"a":3})", 0, "not an object"},
      {R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4, "unknown dtype"},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "dtype"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "shape"},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "shape"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4, "unknown field"},
      {R"({"__metadata__":{"n":1}})", 0, "not a string"},
      {R"({"__metadata__":[]})", 0, "__metadata__"},
      {"  {}", 0, "does not begin with"},  // the format's text asks for "{", whatever readers of it take
      {"\xef\xbb\xbf{}", 0, "does not begin with"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "duplicate key"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "hole or an overlap"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
       5, "hole or an overlap"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3, "hole or an overlap"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,3]}})", 3, "shape and dtype need 2 bytes"},
      {R"({"a":{"dtype":"I32","shape":[2,18446744073709551614],"data_offsets":[0,4]}})", 4, "overflows"},
      {R"({"a":{"dtype":"I32","shape":[2,9223372036854775807],"data_offsets":[0,4]}})", 4, "overflows"},
      {R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1, "whole number of bytes"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3, "trailing bytes"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1, "truncated"},
  };
  for (const Case& entry : cases) {
    CAPTURE(entry.json);
    const auto header = parse(entry.json, entry.data_bytes);
    REQUIRE_FALSE(header.has_value());
    CHECK_MESSAGE(header.error().message.find(entry.message) != std::string::npos, header.error().message);
  }
}

TEST_CASE("safetensors: what a header may have is counted while it is read") {
  const auto refused = [](const std::string& json) {
    const auto header = parse(json, 0);
    REQUIRE_FALSE(header.has_value());
    CHECK(header.error().kind == ErrorKind::budget);
    return header.error().message;
  };
  const auto repeated = [](size_t count, const auto& entry) {
    std::string text;
    for (size_t i = 0; i < count; ++i)
      text += (i == 0 ? "" : ",") + entry(i);
    return text;
  };
  const auto dimensions = [&](size_t count) {
    const std::string zeros = repeated(count, [](size_t) { return std::string("0"); });
    return R"({"a":{"dtype":"U8","shape":[)" + zeros + R"(],"data_offsets":[0,0]}})";
  };
  CHECK(parse(dimensions(format::kMaxDimensions), 0).has_value());
  CHECK(refused(dimensions(format::kMaxDimensions + 1)).find("64 numbers in \"shape\"") != std::string::npos);
  const auto metadata = [&](size_t count) {
    const auto entry = [](size_t i) { return "\"" + std::to_string(i) + "\":\"\""; };
    return R"({"__metadata__":{)" + repeated(count, entry) + "}}";
  };
  CHECK(parse(metadata(format::kMaxMetadataEntries), 0)->metadata.size() == format::kMaxMetadataEntries);
  CHECK(refused(metadata(format::kMaxMetadataEntries + 1)).find("__metadata__") != std::string::npos);
  const auto tensors = [&](size_t count) {
    const auto entry = [](size_t i) {
      return "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
    };
    return "{" + repeated(count, entry) + "}";
  };
  CHECK(parse(tensors(format::kMaxTensors), 0)->tensors.size() == format::kMaxTensors);
  CHECK(refused(tensors(format::kMaxTensors + 1)).find("tensors") != std::string::npos);
}

TEST_CASE("safetensors: an entry is read in any order, and only as an entry") {
  CHECK(parse(R"({"a":{"data_offsets":[0,2],"shape":[2],"dtype":"U8"}})", 2).has_value());
  for (const char* json :
       {R"({"a":{"dtype":["U8"],"shape":[2],"data_offsets":[0,2]}})",
        R"({"a":{"dtype":"U8","shape":[[2]],"data_offsets":[0,2]}})",
        R"({"a":{"dtype":"U8","shape":{"x":2},"data_offsets":[0,2]}})",
        R"({"a":{"dtype":"U8","shape":null,"data_offsets":[0,2]}})",
        R"({"a":{"dtype":{"dtype":"U8"},"shape":[2],"data_offsets":[0,2]}})", R"({"a":null})", R"({"a":[]})",
        R"({"__metadata__":{"a":{}}})", R"({"__metadata__":{"a":null}})", R"({"__metadata__":{},"__metadata__":{}})",
        R"({"__metadata__":null,"__metadata__":null})", R"({"__metadata__":{"a":"","a":""}})",
        R"({"a":{"dtype":"U8","shape":[2],"shape":[2],"data_offsets":[0,2]}})", "3", "null", "\"x\""}) {
    CAPTURE(json);
    CHECK_FALSE(parse(json, 2).has_value());
  }
  // Two of a name, each with a place of its own, and two that are empty.
  CHECK(parse(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0061":{"dtype":"U8","shape":[0],)"
              R"("data_offsets":[0,0]}})",
              0)
            .error()
            .message == "duplicate key \"a\"");
  CHECK(format::parse_header(R"({"a":{}})", 5).error().kind == ErrorKind::corrupt);
}

TEST_CASE("safetensors: many tensors at the same place are an overlap, found without much work") {
  format::Json header = format::Json::object();
  for (int i = 0; i < 100'000; ++i) {
    header["t" + std::to_string(i)] = {{"dtype", "U8"}, {"shape", {200}}, {"data_offsets", {0, 200}}};
  }
  CHECK(parse(header.dump(), 200).error().message.find("overlap") != std::string::npos);
}

TEST_CASE("safetensors: a written header has page-aligned data and reads back as it was") {
  std::vector<TensorInfo> tensors = {{"scale", Dtype::f32, {3, 1}, {}},
                                     {"z.weight", Dtype::f8_e4m3, {64, 64}, {}},
                                     {"norm", Dtype::bf16, {7}, {}},
                                     {"a.weight", Dtype::f8_e4m3, {128, 64}, {}},
                                     {"odd", Dtype::u8, {5}, {}}};
  format::arrange_tensors(tensors);
  std::vector<std::string> order;
  for (const TensorInfo& tensor : tensors)
    order.push_back(tensor.name);
  CHECK(order == std::vector<std::string>{"a.weight", "z.weight", "scale", "norm", "odd"});
  const std::string header = format::write_header(tensors);
  CHECK(header.size() % kPageBytes == 0);
  CHECK(header[8] == '{');
  const uint64_t file_bytes = header.size() + tensors.back().data.end;
  CHECK(*format::parse_header_length(header, file_bytes) == header.size() - 8);
  const auto parsed = parse_header(std::string_view(header).substr(8), file_bytes);
  REQUIRE(parsed.has_value());
  CHECK(parsed->data_start == header.size());
  CHECK(parsed->metadata == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE(parsed->tensors.size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    CHECK(parsed->tensors[i].name == tensors[i].name);
    CHECK(parsed->tensors[i].data == tensors[i].data);
    CHECK(parsed->tensors[i].shape == tensors[i].shape);
    CHECK((parsed->data_start + parsed->tensors[i].data.begin) % (bits_of(tensors[i].dtype) / 8) == 0);
  }
}

TEST_CASE("safetensors: units stay together as far as alignment allows") {
  std::vector<TensorInfo> tensors;
  std::vector<uint32_t> units;
  const auto add = [&](const char* name, Dtype dtype, uint64_t elements, uint32_t unit) {
    tensors.push_back({name, dtype, {elements}, {}});
    units.push_back(unit);
  };
  add("a10.scale", Dtype::f32, 3, 10);
  add("a10.weight", Dtype::u8, 4096, 10);
  add("a10.wide", Dtype::bf16, 2048, 10);
  add("a2.odd", Dtype::u8, 3, 2);
  add("a2.scale", Dtype::f32, 1, 2);
  add("a2.up", Dtype::u8, 8192, 2);
  add("a2.down", Dtype::u8, 4096, 2);
  add("a2.wide", Dtype::bf16, 2048, 2);
  format::arrange_tensors(tensors, units);
  std::vector<std::string> order;
  for (const TensorInfo& tensor : tensors) {
    order.push_back(tensor.name);
    CHECK(tensor.data.begin % (bits_of(tensor.dtype) / 8) == 0);
  }
  CHECK(order == std::vector<std::string>{"a2.wide", "a2.down", "a2.up", "a10.wide", "a10.weight", "a2.scale",
                                          "a10.scale", "a2.odd"});
  CHECK(tensors.back().data == ByteRange{24576 + 16, 24576 + 19});
}

}  // namespace dspack::safetensors_test
