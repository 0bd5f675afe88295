
#include <doctest/doctest.h>

#include <array>

#include "format/source/repository.h"
#include "runtime/weights/weight_group.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::runtime::linear_test {
namespace {

using test::RawTensor;

/// A checkpoint of one file with the given tensors.
struct OneFile {
  explicit OneFile(const std::vector<RawTensor>& tensors) {
    folder.write("model.safetensors", test::safetensors_file(tensors));
    folder.write("config.json", "{}");
    repository = std::move(*format::open_repository(folder.path().string(), {}, format::posix_file_system()));
    auto opened = format::Checkpoint::open(*repository, 1, {});
    REQUIRE_MESSAGE(opened, (opened ? "" : opened.error().message));
    checkpoint = std::move(*opened);
  }
  test::TempFolder folder;
  std::unique_ptr<format::Repository> repository;
  format::Checkpoint checkpoint;
};

RawTensor tensor(const std::string& name, const std::string& dtype, const std::vector<uint64_t>& shape,
                 size_t element) {
  size_t bytes = element;
  for (const uint64_t side : shape)
    bytes *= side;
  return {name, dtype, shape, test::pattern(bytes, 1)};
}

const format::Quantization kBlock{.block = format::BlockSize{.out = 128, .in = 128}};

TEST_CASE("linear: FP8 with block scales, ragged at both ends") {
  const OneFile file({tensor("w.weight", "F8_E4M3", {320, 192}, 1), tensor("w.weight_scale_inv", "F32", {3, 2}, 4)});
  const auto source = format::find_matrix(file.checkpoint, "w.weight", 320, 192, kBlock);
  REQUIRE(source);
  CHECK(source->form.coding == kernels::Coding::f8_e4m3);
  CHECK(source->form.block_out == 128);
  CHECK(source->planes[kernels::kScales].bytes == 6 * sizeof(float));
}

TEST_CASE("linear: without weight_block_size the scales' shape says what they cover") {
  const OneFile file(
      {tensor("block.weight", "F8_E4M3", {576, 256}, 1), tensor("block.weight_scale_inv", "F32", {5, 2}, 4),
       tensor("channel.weight", "F8_E4M3", {96, 32}, 1), tensor("channel.weight_scale", "F32", {96, 1}, 4),
       tensor("whole.weight", "F8_E4M3", {96, 32}, 1), tensor("whole.weight_scale", "F32", {}, 4)});
  const auto block = format::find_matrix(file.checkpoint, "block.weight", 576, 256, {});
  REQUIRE(block);
  CHECK(block->form.block_out == 128);
  CHECK(block->form.block_in == 128);
  const auto channel = format::find_matrix(file.checkpoint, "channel.weight", 96, 32, {});
  REQUIRE(channel);
  CHECK(channel->form.block_out == 1);
  CHECK(channel->form.block_in == 32);
  const auto whole = format::find_matrix(file.checkpoint, "whole.weight", 96, 32, {});
  REQUIRE(whole);
  CHECK(whole->form.block_out == 96);
  CHECK(whole->form.block_in == 32);
}

TEST_CASE("linear: what does not fit is refused with file and tensor") {
  const OneFile file({tensor("bare.weight", "F8_E4M3", {128, 128}, 1), tensor("grid.weight", "F8_E4M3", {256, 128}, 1),
                      tensor("grid.weight_scale_inv", "F32", {1, 1}, 4), tensor("plain.weight", "BF16", {8, 4}, 2),
                      tensor("plain.weight_scale_inv", "F32", {1, 1}, 4), tensor("int.weight", "I16", {8, 4}, 2)});
  const auto refused = [&](const char* name, uint32_t out, uint32_t in, ErrorKind kind, const char* part) {
    CAPTURE(name);
    const auto source = format::find_matrix(file.checkpoint, name, out, in, kBlock);
    REQUIRE_FALSE(source);
    CAPTURE(source.error().message);
    CHECK(source.error().kind == kind);
    CHECK(source.error().message.find(name) != std::string::npos);
    CHECK(source.error().message.find(part) != std::string::npos);
  };
  refused("absent.weight", 8, 4, ErrorKind::not_found, "missing");
  refused("bare.weight", 128, 128, ErrorKind::not_found, "bare.weight_scale_inv is missing");
  refused("bare.weight", 128, 64, ErrorKind::invalid, "model.safetensors: bare.weight has shape [128, 128]");
  refused("grid.weight", 256, 128, ErrorKind::invalid, "[1, 1]");
  refused("plain.weight", 8, 4, ErrorKind::invalid, "BF16");
  refused("int.weight", 8, 4, ErrorKind::unsupported, "I16");
}

TEST_CASE("linear: I8 has a scale for each row, [out] or [out, 1], and nothing else") {
  const OneFile file({tensor("a.weight", "I8", {6, 4}, 1), tensor("a.weight_scale", "F32", {6}, 4),
                      tensor("b.weight", "I8", {6, 4}, 1), tensor("b.weight_scale", "BF16", {6, 1}, 2),
                      tensor("whole.weight", "I8", {6, 4}, 1), tensor("whole.weight_scale", "F32", {1}, 4),
                      tensor("group.weight", "I8", {6, 4}, 1), tensor("group.weight_scale", "F16", {6, 2}, 2),
                      tensor("odd.weight", "I8", {6, 4}, 1), tensor("odd.weight_scale", "I32", {6, 1}, 4),
                      tensor("bare.weight", "I8", {6, 4}, 1)});
  for (const char* name : {"a.weight", "b.weight"}) {
    const auto found = format::find_matrix(file.checkpoint, name, 6, 4, kBlock);
    REQUIRE(found);
    CHECK(found->form == kernels::WeightForm{kernels::Coding::i8, 6, 4, 1, 4});
    CHECK(found->planes[kernels::kScales].bytes == 6 * sizeof(float));
  }
  const auto refused = [&](const char* name, ErrorKind kind, const char* part) {
    CAPTURE(name);
    const auto found = format::find_matrix(file.checkpoint, name, 6, 4, {});
    REQUIRE_FALSE(found);
    CHECK(found.error().kind == kind);
    CHECK(found.error().message.find(part) != std::string::npos);
  };
  refused("whole.weight", ErrorKind::invalid, "[1]");
  refused("group.weight", ErrorKind::invalid, "[6, 2]");
  refused("odd.weight", ErrorKind::unsupported, "I32");
  refused("bare.weight", ErrorKind::not_found, "bare.weight_scale is missing");
}

TEST_CASE("weights: small types widen without rounding") {
  const std::array<uint16_t, 3> bf16{0x3f80, 0xc000, 0x0001};
  std::array<float, 3> values{};
  format::widen_to_f32(Dtype::bf16, std::as_bytes(std::span(bf16)), values);
  CHECK(values == std::array<float, 3>{1.0F, -2.0F, 0x1p-133F});
  const std::array<uint8_t, 2> powers{127, 130};
  format::widen_to_f32(Dtype::f8_e8m0, std::as_bytes(std::span(powers)), std::span(values).first(2));
  CHECK(values[0] == 1.0F);
  CHECK(values[1] == 8.0F);
}

}  // namespace
}  // namespace dspack::runtime::linear_test
