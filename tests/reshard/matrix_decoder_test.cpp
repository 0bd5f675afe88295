// Matrices of every stored form become the values that their formats' own libraries read, bit for bit
// (tests/data/weight_formats).
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "format/dtype.h"
#include "reshard/run/converter.h"
#include "reshard/run/tensor_reader.h"

namespace dspack::matrix_decoder_test {
namespace {

using reshard::Conversion;

constexpr std::string_view kExpected = ".expected";

/// The checkpoint of the matrices.
struct Forms {
  Forms()
      : repository(
            format::open_repository(std::string(DSPACK_TEST_DATA) + "/weight_formats", {}, format::posix_file_system())
                .value()),
        catalogue(format::Checkpoint::open(*repository, 1, {}).value()),
        reader(*repository, catalogue) {}

  std::vector<std::byte> bytes(const format::TensorEntry& tensor) { return reader.read(tensor, {}).value(); }
  std::vector<float> floats(const format::TensorEntry& tensor) {
    const std::vector<std::byte> stored = bytes(tensor);
    std::vector<float> values(stored.size() / sizeof(float));
    std::memcpy(values.data(), stored.data(), stored.size());
    return values;
  }

  std::unique_ptr<format::Repository> repository;
  format::Checkpoint catalogue;
  reshard::TensorReader reader;
};

/// What config.json would say of a module, where tensors do not show it.
format::Quantization said_of(std::string_view module) {
  if (!module.starts_with("gptq")) return {};
  const auto has = [&](std::string_view part) { return module.find(part) != std::string_view::npos; };
  return {.ordered = has("ordered"), .zero_offset = has("_v2") ? 0U : 1U};
}

std::vector<std::byte> decoded(Forms& forms, const format::StoredMatrix& matrix, Conversion conversion, size_t piece) {
  reshard::MatrixSource source{.catalogue = forms.catalogue, .matrix = matrix, .beside = {}};
  const format::TensorEntry& codes = matrix.planes[format::kCodes].elements();
  for (const format::StoredPlane& plane : matrix.planes) {
    for (const format::TensorEntry* tensor : plane.tensors) {
      if (tensor != &codes) source.beside[tensor] = forms.bytes(*tensor);
    }
  }
  const auto converter = reshard::make_matrix_decoder(std::move(source), conversion);
  std::vector<std::byte> made;
  const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
    made.insert(made.end(), bytes.begin(), bytes.end());
    return {};
  };
  const std::vector<std::byte> stored = forms.bytes(codes);
  for (size_t at = 0; at < stored.size(); at += piece)
    REQUIRE(converter->take(std::span(stored).subspan(at, std::min(piece, stored.size() - at)), sink));
  REQUIRE(converter->finish(sink));
  CHECK(converter->loss().has_value() == (conversion == Conversion::decoded_to_bf16));
  return made;
}

TEST_CASE("matrix decoder: every form becomes the values that its format's own library reads") {
  Forms forms;
  size_t matrices = 0;
  for (const format::TensorEntry& tensor : forms.catalogue.tensors()) {
    if (!tensor.name.ends_with(kExpected)) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - kExpected.size());
    CAPTURE(module);
    const auto matrix = format::find_matrix(forms.catalogue, module + ".weight", static_cast<uint32_t>(tensor.shape[0]),
                                            static_cast<uint32_t>(tensor.shape[1]), said_of(module));
    REQUIRE(matrix);
    const std::vector<float> wanted = forms.floats(tensor);
    const std::vector<std::byte> wide = decoded(forms, *matrix, Conversion::decoded_to_f32, 1000);
    const std::vector<std::byte> narrow = decoded(forms, *matrix, Conversion::decoded_to_bf16, 7);
    REQUIRE(wide.size() == wanted.size() * sizeof(float));
    REQUIRE(narrow.size() == wanted.size() * sizeof(uint16_t));
    size_t wrong = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      float value = 0;
      uint16_t code = 0;
      std::memcpy(&value, wide.data() + i * sizeof value, sizeof value);
      std::memcpy(&code, narrow.data() + i * sizeof code, sizeof code);
      const bool is_right = value == wanted[i] && bf16_to_f32(code) == bf16_to_f32(f32_to_bf16(wanted[i]));
      wrong += is_right ? 0 : 1;  // zeros may differ in their sign
    }
    CHECK(wrong == 0);
    ++matrices;
  }
  CHECK(matrices >= 26);
}

TEST_CASE("matrix decoder: the shape of a matrix is told by its tensors, or it is said why not") {
  Forms forms;
  for (const format::TensorEntry& tensor : forms.catalogue.tensors()) {
    if (!tensor.name.ends_with(kExpected)) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - kExpected.size());
    CAPTURE(module);
    const std::string name = module + ".weight";
    const format::WeightFormat* format = format::storing_format(forms.catalogue, name);
    REQUIRE(format != nullptr);
    format::Quantization said = said_of(module);
    const auto begins = [&](std::string_view with) { return module.starts_with(with); };
    const bool is_packed = begins("int4") || begins("int8");
    if (is_packed) {
      CHECK(format->shape(forms.catalogue, name, said).error().kind == ErrorKind::unsupported);  // 4 or 8 bits?
      said.bits = begins("int4") ? 4 : 8;
    } else if (begins("gptq_8")) {
      said.bits = 8;
    }
    const auto shape = format->shape(forms.catalogue, name, said);
    if (begins("bnb_nf4") || begins("bnb_fp4")) {
      CHECK(shape.error().kind == ErrorKind::unsupported);
      continue;
    }
    REQUIRE(shape);
    CHECK(shape->out == tensor.shape[0]);
    const uint64_t filled = is_packed ? 32 / *said.bits : 1;  // rows fill words, whatever they hold
    CHECK(shape->in == (tensor.shape[1] + filled - 1) / filled * filled);
  }
}

/// Codes of E2M1 with E8M0 scales for 32 columns, as a header could claim them.
format::Checkpoint claimed(uint64_t out, uint64_t in) {
  const auto entry = [](const char* part, std::vector<uint64_t> shape) {
    format::TensorEntry tensor;
    tensor.name = std::string("model.layers.3.mlp.experts.0.up_proj.") + part;
    tensor.dtype = Dtype::u8;
    tensor.range = {0, shape[0] * shape[1]};
    tensor.shape = std::move(shape);
    return tensor;
  };
  return format::Checkpoint::of({entry("weight_packed", {out, in / 2}), entry("weight_scale", {out, in / 32})}).value();
}

TEST_CASE("matrix decoder: a matrix that would take too much memory is refused before any of it is read") {
  const auto change = [](uint64_t out, uint64_t in) {
    const format::Checkpoint source = claimed(out, in);
    const auto codes = static_cast<uint32_t>(source.find("model.layers.3.mlp.experts.0.up_proj.weight_packed") -
                                             source.tensors().data());
    return reshard::apply({.kind = reshard::TransformKind::quantised_to_f32}, codes, source, {});
  };
  CHECK(change(7168, 2048).value().has_value());
  // As stored and as multiplied: 1.06 GiB, 8 TiB, and sizes whose sums pass 2^64.
  for (const auto& [out, in] : std::initializer_list<std::pair<uint64_t, uint64_t>>{
           {1ULL << 19, 1ULL << 11}, {1ULL << 25, 1ULL << 19}, {1ULL << 30, 1ULL << 30}}) {
    const auto refused = change(out, in);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().kind == ErrorKind::unsupported);
    CHECK(refused.error().message.find(" GB at once") != std::string::npos);
  }
}

}  // namespace
}  // namespace dspack::matrix_decoder_test
