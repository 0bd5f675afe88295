#include "reshard/run/converter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "format/base/size.h"
#include "format/dtype.h"
#include "kernels/quantise_nvfp4.h"
#include "reshard/plan/transform.h"
#include "reshard/run/four_bit_quantiser.h"
#include "reshard/run/row_converter.h"

namespace dspack::reshard {
namespace {

using format::ByteSink;

/// FP8 rows and their scales -> BF16 or F32.
template <class T>
class Dequantiser final : public RowConverter {
 public:
  Dequantiser(uint64_t columns, std::vector<float> scales)
      : RowConverter(columns, kBlock),
        columns_(columns),
        scales_(std::move(scales)),
        row_scales_(ceil_div(columns, kBlock)) {}

  std::optional<kernels::Loss> loss() const override { return loss_; }

 protected:
  Result<void> convert(std::span<const std::byte> rows, const ByteSink& sink) override {
    const std::span<const uint8_t> values(reinterpret_cast<const uint8_t*>(rows.data()), rows.size());
    const auto scales = std::span(scales_).subspan(blocks_ * row_scales_, row_scales_);
    out_.resize(values.size());
    loss_ += kernels::dequantise_rows(values, columns_, scales, kBlock, std::span<T>(out_));
    if (!std::isfinite(loss_.squared_error)) {
      return Error{
          ErrorKind::unsupported,
          fmt::format(
              "holds a value in its rows from {} that is too large for {} bits; exempt the tensor by a selector",
              blocks_ * kBlock, 8 * sizeof(T))};
    }
    ++blocks_;
    return sink(std::as_bytes(std::span(out_)));
  }

 private:
  uint64_t columns_;
  std::vector<float> scales_;
  uint64_t row_scales_;
  uint64_t blocks_ = 0;  // blocks of rows converted
  std::vector<T> out_;
  kernels::Loss loss_;
};

/// BF16 rows -> FP8, or the scales of these rows.
class Quantiser final : public RowConverter {
 public:
  Quantiser(uint64_t columns, bool scales_only)
      : RowConverter(columns * sizeof(uint16_t), kBlock),
        columns_(columns),
        scales_only_(scales_only),
        scales_(ceil_div(columns, kBlock)) {}

  std::optional<kernels::Loss> loss() const override { return scales_only_ ? std::nullopt : std::optional(loss_); }

 protected:
  Result<void> convert(std::span<const std::byte> rows, const ByteSink& sink) override {
    const std::vector<uint16_t> values = values_of<uint16_t>(rows);
    if (!kernels::block_scales(values, columns_, kBlock, scales_)) {
      return Error{ErrorKind::unsupported,
                   "holds an infinity or NaN, which FP8 with a scale cannot; exempt the tensor by a selector"};
    }
    if (scales_only_) return sink(std::as_bytes(std::span(scales_)));
    std::vector<uint8_t> fp8(values.size());
    loss_ += kernels::quantise_rows(values, columns_, scales_, kBlock, fp8);
    return sink(std::as_bytes(std::span(fp8)));
  }

 private:
  uint64_t columns_;
  bool scales_only_;
  std::vector<float> scales_;
  kernels::Loss loss_;
};

/// Output that does not depend on the tensor's bytes: a constant, or derived from its shape.
class Constant final : public Converter {
 public:
  template <class T>
  explicit Constant(std::span<const T> values) : bytes_(std::as_bytes(values).begin(), std::as_bytes(values).end()) {}

  Result<void> take(std::span<const std::byte> /*bytes*/, const ByteSink& /*sink*/) override { return {}; }
  Result<void> finish(const ByteSink& sink) override { return sink(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

std::unique_ptr<Converter> shape_of(const format::TensorEntry& source) {
  const std::array<int64_t, 2> shape{narrow<int64_t>(source.shape.at(0)), narrow<int64_t>(matrix_columns(source))};
  return std::make_unique<Constant>(std::span<const int64_t>(shape));
}

/// F32 powers of two -> E8M0.
class ScaleNarrower final : public RowConverter {
 public:
  ScaleNarrower() : RowConverter(sizeof(float), kValuesAtOnce) {}

 protected:
  Result<void> convert(std::span<const std::byte> bytes, const ByteSink& sink) override {
    std::vector<uint8_t> narrow;
    for (const float value : values_of<float>(bytes)) {
      const std::optional<uint8_t> exponent = kernels::exact_e8m0(value);
      if (!exponent) return Error{ErrorKind::corrupt, "has a scale that is no power of two, and had none before"};
      narrow.push_back(*exponent);
    }
    return sink(std::as_bytes(std::span(narrow)));
  }

 private:
  static constexpr uint64_t kValuesAtOnce = 4096;
};

}  // namespace

std::vector<float> scale_values(Dtype dtype, std::span<const std::byte> bytes) {
  if (dtype == Dtype::f32) return values_of<float>(bytes);
  DSPACK_CHECK(dtype == Dtype::f8_e8m0, "scales of another type");
  std::vector<float> values;
  for (const uint8_t exponent : values_of<uint8_t>(bytes))
    values.push_back(f8_e8m0_to_f32(exponent));
  return values;
}

std::vector<std::unique_ptr<Converter>> make_converters(std::span<const Conversion> conversions,
                                                        const format::TensorEntry& source,
                                                        const std::vector<float>& scales) {
  const auto columns = [&] { return source.shape.at(1); };
  FourBitParts four_bits(source, scales);
  const auto make = [&](Conversion conversion) -> std::unique_ptr<Converter> {
    switch (conversion) {
      case Conversion::none: return nullptr;
      case Conversion::fp8_to_bf16: return std::make_unique<Dequantiser<uint16_t>>(columns(), scales);
      case Conversion::fp8_to_f32: return std::make_unique<Dequantiser<float>>(columns(), scales);
      case Conversion::bf16_to_fp8: return std::make_unique<Quantiser>(columns(), false);
      case Conversion::bf16_scales: return std::make_unique<Quantiser>(columns(), true);
      case Conversion::f32_to_e8m0: return std::make_unique<ScaleNarrower>();
      case Conversion::int4_codes:
      case Conversion::int4_scales:
      case Conversion::nvfp4_codes:
      case Conversion::nvfp4_scales: return four_bits.part(conversion);
      case Conversion::int4_shape: return shape_of(source);
      case Conversion::nvfp4_global:
        return std::make_unique<Constant>(std::span<const float>(&kernels::kNvfp4Global, 1));
      case Conversion::decoded_to_bf16:
      case Conversion::decoded_to_f32: break;  // matrix_decoder.h
    }
    DSPACK_CHECK(false, "no conversion");
    return nullptr;
  };
  std::vector<std::unique_ptr<Converter>> converters;
  for (const Conversion conversion : conversions)
    converters.push_back(make(conversion));
  return converters;
}

}  // namespace dspack::reshard
