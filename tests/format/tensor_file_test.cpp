// A file written piece by piece is an ordinary safetensors file; one that was not completed is nothing.
#include "format/tensor_file.h"

#include <doctest/doctest.h>

#include "tests/support/temp_folder.h"

namespace dspack::format::tensor_file_test {
namespace {

std::unique_ptr<TensorFileWriter> created(const Path& path, uint64_t room) {
  auto writer = TensorFileWriter::create(posix_file_system(), path, room);
  REQUIRE_MESSAGE(writer, (writer ? "" : writer.error().message));
  return std::move(*writer);
}

TEST_CASE("tensor file: interleaved pieces end up where they belong") {
  const test::TempFolder folder;
  const auto writer = created(folder.path() / "f", TensorFileWriter::header_room(3, 8, 100));
  const size_t a = writer->add("a", Dtype::u8, {2, 3});
  const size_t b = writer->add("b", Dtype::f32, {1});
  REQUIRE(writer->append(b, as_bytes("1")));
  REQUIRE(writer->append(a, as_bytes("abcd")));
  CHECK(writer->missing_bytes(a) == 2);
  const size_t empty = writer->add("empty", Dtype::f32, {0, 5});
  REQUIRE(writer->append(b, as_bytes("234")));
  REQUIRE(writer->append(a, as_bytes("ef")));
  CHECK(writer->missing_bytes(empty) == 0);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "f"));
  REQUIRE(writer->seal({{"program", "test \"1\""}}));
  CHECK_FALSE(std::filesystem::exists(folder.path() / ".f.tmp"));

  const std::string file = folder.read("f");
  const auto length = parse_header_length(file.substr(0, 8), file.size());
  REQUIRE(length);
  const auto header = parse_header(std::string_view(file).substr(8, *length), file.size());
  REQUIRE(header);
  CHECK(header->metadata == std::map<std::string, std::string>{{"format", "pt"}, {"program", "test \"1\""}});
  REQUIRE(header->tensors.size() == 3);
  for (const TensorInfo& tensor : header->tensors) {
    const std::string bytes = file.substr(header->data_start + tensor.data.begin, tensor.data.size());
    CHECK(bytes == (tensor.name == "a" ? "abcdef" : tensor.name == "b" ? "1234" : ""));
  }
}

TEST_CASE("tensor file: the room is enough for the longest entries") {
  const test::TempFolder folder;
  constexpr uint64_t kTensors = 300;
  const auto writer = created(folder.path() / "f", TensorFileWriter::header_room(kTensors, 64, 0));
  for (uint64_t i = 0; i < kTensors; ++i) {
    std::string name = std::to_string(i);
    name.resize(64, 'x');
    const size_t tensor = writer->add(name, Dtype::f8_e4m3fnuz, {0, UINT32_MAX, UINT32_MAX});
    CHECK(writer->missing_bytes(tensor) == 0);
  }
  CHECK(writer->seal({}));
}

TEST_CASE("tensor file: without a seal nothing stays") {
  const test::TempFolder folder;
  {
    const auto writer = created(folder.path() / "f", kPageBytes);
    REQUIRE(writer->append(writer->add("a", Dtype::u8, {5}), as_bytes("abc")));
    CHECK(std::filesystem::exists(folder.path() / ".f.tmp"));
  }
  CHECK(std::filesystem::is_empty(folder.path()));
  CHECK_FALSE(TensorFileWriter::create(posix_file_system(), folder.path() / "no" / "f", kPageBytes));
}

}  // namespace
}  // namespace dspack::format::tensor_file_test
