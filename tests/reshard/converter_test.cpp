#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "format/dtype.h"
#include "reshard/run/converter.h"

namespace dspack::converter_test {

using namespace dspack;
using reshard::Conversion;

namespace {

struct Converted {
  std::string bytes;
  std::optional<kernels::Loss> loss;
  std::optional<Error> error;
};

format::TensorEntry matrix(Dtype dtype, std::vector<uint64_t> shape) {
  format::TensorEntry entry;
  entry.name = "model.layers.0.mlp.up_proj.weight";
  entry.dtype = dtype;
  entry.shape = std::move(shape);
  return entry;
}

/// Passes `bytes` in pieces whose lengths `next` gives.
Converted convert(Conversion conversion, const format::TensorEntry& source, const std::vector<float>& scales,
                  const std::string& bytes, const std::function<size_t()>& next) {
  Converted result;
  const auto converter = std::move(reshard::make_converters(std::span(&conversion, 1), source, scales).front());
  const format::ByteSink sink = [&](std::span<const std::byte> piece) -> Result<void> {
    result.bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return {};
  };
  const auto all = format::as_bytes(bytes);
  for (size_t at = 0; at < all.size();) {
    const size_t size = std::min(next(), all.size() - at);
    if (const auto taken = converter->take(all.subspan(at, size), sink); !taken) {
      result.error = taken.error();
      return result;
    }
    at += size;
  }
  if (const auto finished = converter->finish(sink); !finished) result.error = finished.error();
  result.loss = converter->loss();
  return result;
}

Converted convert(Conversion conversion, const format::TensorEntry& source, const std::vector<float>& scales,
                  const std::string& bytes) {
  return convert(conversion, source, scales, bytes, [&] { return std::max<size_t>(1, bytes.size()); });
}

template <class T>
std::string as_text(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
std::vector<T> as_values(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

struct Case {
  const char* name;
  Conversion conversion;
  format::TensorEntry source;
  std::vector<float> scales;
  std::string bytes;
};

/// Codes, then their scales, of each form in groups.
constexpr Conversion kGroupParts[] = {Conversion::int4_codes,  Conversion::int4_scales, Conversion::int8_codes,
                                      Conversion::int8_scales, Conversion::nvfp4_codes, Conversion::nvfp4_scales};

std::vector<Case> cases() {
  std::mt19937 engine(1);
  std::vector<Case> all;
  for (const auto& [rows, columns] :
       {std::pair<uint64_t, uint64_t>{200, 300}, {128, 128}, {1, 1}, {129, 5}, {300, 96}}) {
    std::vector<uint8_t> fp8;
    std::vector<uint16_t> bf16;
    std::normal_distribution<float> normal(0, 0.03F);
    for (uint64_t i = 0; i < rows * columns; ++i) {
      fp8.push_back(static_cast<uint8_t>(engine()));
      bf16.push_back(f32_to_bf16(normal(engine)));
    }
    std::vector<float> scales;
    std::vector<float> powers;
    for (uint64_t i = 0; i < (rows + 127) / 128 * ((columns + 127) / 128); ++i) {
      scales.push_back(std::ldexp(1.0F + static_cast<float>(engine() % 1000) / 1000, -9));
      powers.push_back(std::ldexp(1.0F, static_cast<int>(engine() % 200) - 100));
    }
    all.push_back({"to BF16", Conversion::fp8_to_bf16, matrix(Dtype::f8_e4m3, {rows, columns}), scales, as_text(fp8)});
    all.push_back({"to F32", Conversion::fp8_to_f32, matrix(Dtype::f8_e4m3, {rows, columns}), scales, as_text(fp8)});
    all.push_back({"to FP8", Conversion::bf16_to_fp8, matrix(Dtype::bf16, {rows, columns}), {}, as_text(bf16)});
    all.push_back({"scales", Conversion::bf16_scales, matrix(Dtype::bf16, {rows, columns}), {}, as_text(bf16)});
    if (columns % 32 != 0) {
      all.push_back({"to E8M0", Conversion::f32_to_e8m0, matrix(Dtype::f32, {1, powers.size()}), {}, as_text(powers)});
      continue;
    }
    for (uint8_t& code : fp8)
      code &= 0xbf;  // no NaN, and small enough for every form
    for (const Conversion conversion : kGroupParts) {
      all.push_back({"groups", conversion, matrix(Dtype::bf16, {rows, columns}), {}, as_text(bf16)});
      all.push_back({"groups", conversion, matrix(Dtype::f8_e4m3, {rows, columns}), scales, as_text(fp8)});
    }
    all.push_back({"to E8M0", Conversion::f32_to_e8m0, matrix(Dtype::f32, {1, powers.size()}), {}, as_text(powers)});
    std::vector<uint8_t> fp4(rows * columns / 2);
    std::ranges::generate(fp4, [&] { return static_cast<uint8_t>(engine()); });
    std::vector<float> of_groups(rows * columns / 32);
    std::ranges::generate(of_groups, [&] { return std::ldexp(1.0F, -static_cast<int>(engine() % 24)); });
    for (const Conversion conversion : kGroupParts)
      all.push_back({"of FP4", conversion, matrix(Dtype::i8, {rows, columns / 2}), of_groups, as_text(fp4)});
  }
  return all;
}

double e2m1(uint32_t code) {
  constexpr double kSizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code < 8 ? kSizes[code] : -kSizes[code - 8];
}

/// Two codes a byte, the first in the low half.
std::vector<uint32_t> nibbles(const std::string& bytes) {
  std::vector<uint32_t> codes;
  for (const char byte : bytes) {
    codes.push_back(static_cast<uint8_t>(byte) & 15U);
    codes.push_back(static_cast<uint8_t>(byte) >> 4U);
  }
  return codes;
}

}  // namespace

TEST_CASE("converter: pieces of any length give the same bytes and the same loss, to the last bit") {
  std::mt19937 engine(2);
  for (const Case& entry : cases()) {
    CAPTURE(entry.name);
    CAPTURE(entry.source.shape[1]);
    const Converted whole = convert(entry.conversion, entry.source, entry.scales, entry.bytes);
    REQUIRE_FALSE(whole.error);
    CHECK_FALSE(whole.bytes.empty());
    for (const size_t length : {size_t{1}, size_t{3}, size_t{127}, size_t{4096}, size_t{0}}) {
      CAPTURE(length);
      const auto next = [&] { return length == 0 ? 1 + engine() % 1000 : length; };
      const Converted parts = convert(entry.conversion, entry.source, entry.scales, entry.bytes, next);
      REQUIRE_FALSE(parts.error);
      REQUIRE(parts.bytes == whole.bytes);
      REQUIRE(parts.loss.has_value() == whole.loss.has_value());
      if (!whole.loss) continue;
      CHECK(parts.loss->squared_error == whole.loss->squared_error);
      CHECK(parts.loss->squared_value == whole.loss->squared_value);
    }
  }
}

TEST_CASE("converter: codes and scales made together are those made alone, whichever gets its bytes first") {
  for (size_t form = 0; form < std::size(kGroupParts); form += 2) {
    const Conversion codes = kGroupParts[form], scales = kGroupParts[form + 1];
    for (const Case& entry : cases()) {
      if (entry.conversion != codes) continue;
      const auto all = format::as_bytes(entry.bytes);
      for (const auto& order : {std::array{codes, scales}, std::array{scales, codes}}) {
        std::array<std::string, 2> made;
        const auto converters = reshard::make_converters(order, entry.source, entry.scales);
        const auto sink_of = [&](size_t i) -> format::ByteSink {
          return [&made, i](std::span<const std::byte> piece) -> Result<void> {
            made[i].append(reinterpret_cast<const char*>(piece.data()), piece.size());
            return {};
          };
        };
        for (size_t at = 0; at < all.size(); at += 5000) {
          for (size_t i = 0; i < 2; ++i)
            REQUIRE(converters[i]->take(all.subspan(at, std::min<size_t>(5000, all.size() - at)), sink_of(i)));
        }
        for (size_t i = 0; i < 2; ++i) {
          REQUIRE(converters[i]->finish(sink_of(i)));
          const Converted alone = convert(order[i], entry.source, entry.scales, entry.bytes);
          CHECK(made[i] == alone.bytes);
          CHECK(converters[i]->loss().has_value() == (order[i] == codes));
        }
      }
    }
  }
}

TEST_CASE("converter: FP4 in groups means what it meant, but for the loss that is stated") {
  size_t seen = 0;
  for (const Case& entry : cases()) {
    if (entry.source.dtype != Dtype::i8) continue;
    const auto* part = std::ranges::find(kGroupParts, entry.conversion);
    if ((part - kGroupParts) % 2 != 0) continue;
    ++seen;
    const bool is_nvfp4 = entry.conversion == Conversion::nvfp4_codes;
    const bool is_int8 = entry.conversion == Conversion::int8_codes;
    const Converted codes = convert(entry.conversion, entry.source, entry.scales, entry.bytes);
    const std::string scales = convert(part[1], entry.source, entry.scales, entry.bytes).bytes;
    const auto meant = nibbles(entry.bytes);
    const auto made = is_int8 ? std::vector<uint32_t>() : nibbles(codes.bytes);
    REQUIRE((is_int8 ? codes.bytes.size() : made.size()) == meant.size());
    const auto value = [&](size_t i) {
      if (is_nvfp4)
        return e2m1(made[i]) * static_cast<double>(f8_e4m3_to_f32(static_cast<uint8_t>(scales[i / 16]))) / 256;
      const double code = is_int8 ? static_cast<uint8_t>(codes.bytes[i]) - 128.0 : made[i] - 8.0;
      return code * static_cast<double>(bf16_to_f32(as_values<uint16_t>(scales)[i / 32]));
    };
    double error = 0;
    double square = 0;
    for (size_t i = 0; i < meant.size(); ++i) {
      const double wanted = e2m1(meant[i]) * static_cast<double>(entry.scales[i / 32]);
      const double off = value(i) - wanted;
      error += off * off;
      square += wanted * wanted;
      if (is_nvfp4 && entry.scales[i / 32] >= 0x1p-17F) REQUIRE(made[i] == meant[i]);
    }
    CHECK(codes.loss->squared_error == doctest::Approx(error).epsilon(1e-9));
    CHECK(codes.loss->squared_value == doctest::Approx(square).epsilon(1e-9));
    CHECK(std::sqrt(error / square) < (is_nvfp4 ? 1e-4 : is_int8 ? 0.007 : 0.12));
  }
  CHECK(seen == 6);
  const std::string nan_scaled(16, '\x11');
  for (const Conversion conversion : kGroupParts) {
    const Converted nan = convert(conversion, matrix(Dtype::i8, {1, 16}), {f8_e8m0_to_f32(255)}, nan_scaled);
    REQUIRE(nan.error);
    CHECK(nan.error->message.find("NaN") != std::string::npos);
  }
  const Converted large = convert(Conversion::nvfp4_codes, matrix(Dtype::i8, {1, 16}), {2}, std::string(16, '\x77'));
  REQUIRE(large.error);
  CHECK(large.error->message.find("12, more than the 10.5") != std::string::npos);
  const Converted shape = convert(Conversion::packed_shape, matrix(Dtype::i8, {3, 16}), {}, std::string(48, 'x'));
  CHECK(as_values<int64_t>(shape.bytes) == std::vector<int64_t>{3, 32});
}

TEST_CASE("converter: a value is multiplied by its own block's scale") {
  constexpr uint64_t kRows = 300;
  constexpr uint64_t kColumns = 260;
  std::vector<float> scales;  // [3, 3], each a power of two of its own
  for (int i = 0; i < 9; ++i)
    scales.push_back(std::ldexp(1.0F, i));
  const std::string ones(kRows * kColumns, '\x38');  // 1.0
  const auto source = matrix(Dtype::f8_e4m3, {kRows, kColumns});
  const auto f32 = as_values<float>(convert(Conversion::fp8_to_f32, source, scales, ones).bytes);
  const auto bf16 = as_values<uint16_t>(convert(Conversion::fp8_to_bf16, source, scales, ones).bytes);
  REQUIRE(f32.size() == kRows * kColumns);
  REQUIRE(bf16.size() == kRows * kColumns);
  for (uint64_t i = 0; i < f32.size(); ++i) {
    const uint64_t block = i / kColumns / 128 * 3 + i % kColumns / 128;
    REQUIRE(f32[i] == scales[block]);
    REQUIRE(bf16_to_f32(bf16[i]) == scales[block]);
  }
}

TEST_CASE("converter: what is quantised and its scales fit each other, block by block") {
  for (const Case& entry : cases()) {
    if (entry.conversion != Conversion::bf16_to_fp8) continue;
    const uint64_t columns = entry.source.shape[1];
    const auto fp8 = as_values<uint8_t>(convert(entry.conversion, entry.source, {}, entry.bytes).bytes);
    const auto scales = as_values<float>(convert(Conversion::bf16_scales, entry.source, {}, entry.bytes).bytes);
    const auto bf16 = as_values<uint16_t>(entry.bytes);
    const uint64_t row_blocks = (columns + 127) / 128;
    REQUIRE(scales.size() == (entry.source.shape[0] + 127) / 128 * row_blocks);
    std::vector<int> largest(scales.size(), 0);
    for (uint64_t i = 0; i < fp8.size(); ++i) {
      const uint64_t block = i / columns / 128 * row_blocks + i % columns / 128;
      largest[block] = std::max(largest[block], fp8[i] & 0x7f);
      const double value = bf16_to_f32(bf16[i]);
      // Half a step: 2^-4 of the value, or half of the smallest subnormal.
      const double bound = std::max(std::abs(value) / 16, scales[block] * 0x1p-10) * 1.0001;
      REQUIRE(std::abs(double{f8_e4m3_to_f32(fp8[i])} * scales[block] - value) <= bound);
    }
    for (const int code : largest)
      CHECK(code == 0x7e);
  }
}

TEST_CASE("converter: tensors without values become tensors without values") {
  for (const auto& shape : {std::vector<uint64_t>{0, 256}, {256, 0}, {0, 0}}) {
    const auto fp8 = convert(Conversion::fp8_to_bf16, matrix(Dtype::f8_e4m3, shape), {}, "");
    CHECK_FALSE(fp8.error);
    CHECK(fp8.bytes.empty());
    CHECK(fp8.loss->squared_value == 0);
    CHECK(convert(Conversion::fp8_to_f32, matrix(Dtype::f8_e4m3, shape), {}, "").bytes.empty());
  }
  CHECK(convert(Conversion::f32_to_e8m0, matrix(Dtype::f32, {0, 2}), {}, "").bytes.empty());
}

TEST_CASE("converter: values that have no such form are refused with what to do") {
  const auto refused = [](const Converted& converted, ErrorKind kind, std::string_view part) {
    REQUIRE(converted.error);
    CHECK(converted.error->kind == kind);
    CHECK(converted.error->message.find(part) != std::string::npos);
  };
  std::string bf16 = as_text(std::vector<uint16_t>(300 * 2, 0x3f80));
  bf16[900] = '\x80';
  bf16[901] = '\x7f';
  for (const Conversion conversion : {Conversion::bf16_to_fp8, Conversion::bf16_scales})
    refused(convert(conversion, matrix(Dtype::bf16, {300, 2}), {}, bf16), ErrorKind::unsupported, "selector");

  for (const Conversion conversion : kGroupParts) {
    std::string nan = as_text(std::vector<uint16_t>(32, 0x3f80));
    nan[5] = '\xff';
    refused(convert(conversion, matrix(Dtype::bf16, {1, 32}), {}, nan), ErrorKind::unsupported, "infinity or NaN");
  }
  const std::string eleven = as_text(std::vector<uint16_t>(32, f32_to_bf16(11)));
  refused(convert(Conversion::nvfp4_codes, matrix(Dtype::bf16, {1, 32}), {}, eleven), ErrorKind::unsupported,
          "more than the 10.5");
  CHECK_FALSE(convert(Conversion::int4_codes, matrix(Dtype::bf16, {1, 32}), {}, eleven).error);

  const auto fp8 = matrix(Dtype::f8_e4m3, {2, 3});
  const std::string values = {0x38, 0x38, 0x38, 0x38, 0x7e, 0x38};
  const std::vector<float> too_large{std::numeric_limits<float>::max() / 448};
  refused(convert(Conversion::fp8_to_bf16, fp8, too_large, values), ErrorKind::unsupported,
          "in its rows from 0 that is too large");
  CHECK_FALSE(convert(Conversion::fp8_to_f32, fp8, too_large, values).error);
  refused(convert(Conversion::fp8_to_f32, fp8, {0x1p127F}, values), ErrorKind::unsupported, "for 32 bits");

  const std::string scales = as_text(std::vector<float>{1, 2, 3});
  refused(convert(Conversion::f32_to_e8m0, matrix(Dtype::f32, {1, 3}), {}, scales), ErrorKind::corrupt,
          "no power of two");
}

TEST_CASE("converter: NaN stays NaN and counts in no loss, and so does what an infinite scale makes") {
  const std::string values = {0x38, 0x7f, '\xff', 0x00};
  const auto source = matrix(Dtype::f8_e4m3, {1, 4});
  const auto made = convert(Conversion::fp8_to_bf16, source, {0.3F}, values);
  const auto bf16 = as_values<uint16_t>(made.bytes);
  CHECK(std::isnan(bf16_to_f32(bf16[1])));
  CHECK(std::isnan(bf16_to_f32(bf16[2])));
  CHECK(made.loss->squared_value == doctest::Approx(0.09));
  for (const float scale : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const auto odd = convert(Conversion::fp8_to_f32, source, {scale}, values);
    REQUIRE_FALSE(odd.error);
    CHECK_FALSE(std::isfinite(as_values<float>(odd.bytes)[0]));
    CHECK(odd.loss->squared_error == 0);
  }
}

TEST_CASE("converter: scales come as F32 or as E8M0") {
  const std::vector<float> powers{0.25F, 1.0F, 0x1p-127F, 0x1p127F};
  const std::string narrow = {125, 127, 0, '\xfe'};
  CHECK(reshard::scale_values(Dtype::f32, format::as_bytes(as_text(powers))) == powers);
  CHECK(reshard::scale_values(Dtype::f32, {}).empty());
  CHECK(reshard::scale_values(Dtype::f8_e8m0, format::as_bytes(narrow)) == powers);
  CHECK(convert(Conversion::f32_to_e8m0, matrix(Dtype::f32, {2, 2}), {}, as_text(powers)).bytes == narrow);
}

}  // namespace dspack::converter_test
