#include "reshard/run/converter.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "format/base/size.h"
#include "format/dtype.h"
#include "kernels/quantise_int4.h"
#include "reshard/plan/transform.h"

namespace dspack::reshard {
namespace {

using format::ByteSink;

template <class T>
std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::ranges::copy(bytes.first(values.size() * sizeof(T)), std::as_writable_bytes(std::span(values)).begin());
  return values;
}

/// Collects the bytes of a matrix into groups of whole rows, and hands each group on.
class RowConverter : public Converter {
 public:
  RowConverter(uint64_t row_bytes, uint64_t rows_at_once) : group_bytes_(row_bytes * rows_at_once) {
    group_.reserve(group_bytes_);
  }

  Result<void> take(std::span<const std::byte> bytes, const ByteSink& sink) override {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), group_bytes_ - group_.size()));
      group_.insert(group_.end(), part.begin(), part.end());
      bytes = bytes.subspan(part.size());
      if (group_.size() == group_bytes_) TRY(end_group(sink));
    }
    return {};
  }

  Result<void> finish(const ByteSink& sink) override { return group_.empty() ? Result<void>() : end_group(sink); }

 protected:
  /// Whole rows, as many as come at once or fewer at the end.
  virtual Result<void> convert(std::span<const std::byte> rows, const ByteSink& sink) = 0;

 private:
  Result<void> end_group(const ByteSink& sink) {
    TRY(convert(group_, sink));
    group_.clear();
    return {};
  }

  uint64_t group_bytes_;
  std::vector<std::byte> group_;
};

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
  uint64_t blocks_ = 0;  // of rows, converted
  std::vector<T> out_;
  kernels::Loss loss_;
};

/// BF16 rows -> FP8, or the scales that go with them.
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

/// BF16 rows, or FP8 rows and their scales -> int4, or the scales that go with it.
class Int4Quantiser final : public RowConverter {
 public:
  Int4Quantiser(Dtype dtype, uint64_t columns, std::vector<float> fp8_scales, bool scales_only)
      : RowConverter(bytes_of(dtype, columns), kBlock),
        dtype_(dtype),
        columns_(columns),
        fp8_scales_(std::move(fp8_scales)),
        scales_only_(scales_only) {}

  std::optional<kernels::Loss> loss() const override { return scales_only_ ? std::nullopt : std::optional(loss_); }

 protected:
  Result<void> convert(std::span<const std::byte> rows, const ByteSink& sink) override {
    read_values(rows);
    if (!std::ranges::all_of(values_, [](float value) { return std::isfinite(value); })) {
      return Error{ErrorKind::unsupported,
                   "holds an infinity or NaN, which int4 with a scale cannot; exempt the tensor by a selector"};
    }
    codes_.resize(values_.size() / 2);
    scales_.resize(values_.size() / kernels::kInt4Group);
    loss_ += kernels::quantise_int4(values_, codes_, scales_);
    return sink(scales_only_ ? std::as_bytes(std::span(scales_)) : std::as_bytes(std::span(codes_)));
  }

 private:
  void read_values(std::span<const std::byte> rows) {
    if (dtype_ == Dtype::bf16) {
      values_.clear();
      for (const uint16_t code : values_of<uint16_t>(rows))
        values_.push_back(bf16_to_f32(code));
      return;
    }
    const std::span<const uint8_t> codes(reinterpret_cast<const uint8_t*>(rows.data()), rows.size());
    const uint64_t row_scales = ceil_div(columns_, kBlock);
    values_.resize(codes.size());
    (void)kernels::dequantise_rows(codes, columns_, std::span(fp8_scales_).subspan(blocks_++ * row_scales, row_scales),
                                   kBlock, std::span(values_));
  }

  Dtype dtype_;
  uint64_t columns_;
  std::vector<float> fp8_scales_;
  bool scales_only_;
  uint64_t blocks_ = 0;  // of rows, converted
  std::vector<float> values_;
  std::vector<uint8_t> codes_;
  std::vector<uint16_t> scales_;
  kernels::Loss loss_;
};

/// A matrix's shape, whatever its bytes.
class ShapeWriter final : public Converter {
 public:
  explicit ShapeWriter(const std::vector<uint64_t>& shape)
      : shape_{narrow<int64_t>(shape.at(0)), narrow<int64_t>(shape.at(1))} {}

  Result<void> take(std::span<const std::byte> /*bytes*/, const ByteSink& /*sink*/) override { return {}; }
  Result<void> finish(const ByteSink& sink) override { return sink(std::as_bytes(std::span(shape_))); }

 private:
  std::array<int64_t, 2> shape_;
};

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

std::unique_ptr<Converter> make_converter(Conversion conversion, const format::TensorEntry& source,
                                          std::vector<float> scales) {
  const auto columns = [&] { return source.shape.at(1); };
  switch (conversion) {
    case Conversion::none: break;
    case Conversion::fp8_to_bf16: return std::make_unique<Dequantiser<uint16_t>>(columns(), std::move(scales));
    case Conversion::fp8_to_f32: return std::make_unique<Dequantiser<float>>(columns(), std::move(scales));
    case Conversion::bf16_to_fp8: return std::make_unique<Quantiser>(columns(), false);
    case Conversion::bf16_scales: return std::make_unique<Quantiser>(columns(), true);
    case Conversion::f32_to_e8m0: return std::make_unique<ScaleNarrower>();
    case Conversion::int4_codes:
      return std::make_unique<Int4Quantiser>(source.dtype, columns(), std::move(scales), false);
    case Conversion::int4_scales:
      return std::make_unique<Int4Quantiser>(source.dtype, columns(), std::move(scales), true);
    case Conversion::int4_shape: return std::make_unique<ShapeWriter>(source.shape);
  }
  DSPACK_CHECK(false, "no conversion");
  return nullptr;
}

}  // namespace dspack::reshard
