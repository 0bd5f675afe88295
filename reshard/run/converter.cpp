#include "reshard/run/converter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "format/base/size.h"
#include "format/dtype.h"
#include "kernels/quantise_int4.h"
#include "kernels/quantise_nvfp4.h"
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

/// What one form of four bits makes of rows of values.
struct FourBitForm {
  std::string_view name;
  uint64_t group = 0;        // values that share a scale
  uint64_t scale_bytes = 0;  // of one
  float largest = 0;         // magnitude that it can hold
  kernels::Loss (*quantise)(std::span<const float> values, std::span<uint8_t> codes, std::span<std::byte> scales);
};

const FourBitForm kInt4Form{.name = "int4",
                            .group = kernels::kInt4Group,
                            .scale_bytes = sizeof(uint16_t),
                            .largest = std::numeric_limits<float>::max(),
                            .quantise = [](auto values, auto codes, auto scales) {
                              std::vector<uint16_t> halves(scales.size() / sizeof(uint16_t));
                              const kernels::Loss loss = kernels::quantise_int4(values, codes, halves);
                              std::ranges::copy(std::as_bytes(std::span(halves)), scales.begin());
                              return loss;
                            }};
const FourBitForm kNvfp4Form{
    .name = "NVFP4",
    .group = kernels::kNvfp4Group,
    .scale_bytes = sizeof(uint8_t),
    .largest = kernels::kNvfp4Largest,
    .quantise = [](auto values, auto codes, auto scales) {
      return kernels::quantise_nvfp4(values, codes, {reinterpret_cast<uint8_t*>(scales.data()), scales.size()});
    }};

/// BF16 rows, or FP8 rows and their scales -> codes of four bits and their scales, which two converters hand on. The
/// first of them that brings bytes has them converted.
class FourBitQuantiser final : public RowConverter {
 public:
  enum Part : uint8_t { codes, scales };

  FourBitQuantiser(const FourBitForm& form, Dtype dtype, uint64_t columns, std::vector<float> fp8_scales)
      : RowConverter(bytes_of(dtype, columns), kBlock),
        form_(form),
        dtype_(dtype),
        columns_(columns),
        fp8_scales_(std::move(fp8_scales)) {}

  std::optional<kernels::Loss> loss() const override { return loss_; }

  /// The tensor's bytes from `at` on.
  Result<void> take_at(uint64_t at, std::span<const std::byte> bytes) {
    if (at != taken_) return {};  // known from the other one
    taken_ += bytes.size();
    return take(bytes, {});
  }
  Result<void> finish_once() {
    if (std::exchange(finished_, true)) return {};
    return finish({});
  }
  /// What has been made of one part since it was last asked for.
  Result<void> hand_on(Part part, const ByteSink& sink) {
    TRY(sink(made_[part]));
    made_[part].clear();
    return {};
  }

 protected:
  Result<void> convert(std::span<const std::byte> rows, const ByteSink& /*sink*/) override {
    read_values(rows);
    for (const float value : values_) {
      if (std::abs(value) <= form_.largest) continue;
      const std::string what =
          std::isfinite(value)
              ? fmt::format("{}, more than the {} that {} holds here", value, form_.largest, form_.name)
              : fmt::format("an infinity or NaN, which {} with a scale cannot", form_.name);
      return Error{ErrorKind::unsupported, fmt::format("holds {}; exempt the tensor by a selector", what)};
    }
    const auto append = [](std::vector<std::byte>& to, uint64_t bytes) {
      to.resize(to.size() + bytes);
      return std::span(to).last(bytes);
    };
    const auto to = append(made_[codes], values_.size() / 2);
    loss_ += form_.quantise(values_, {reinterpret_cast<uint8_t*>(to.data()), to.size()},
                            append(made_[scales], values_.size() / form_.group * form_.scale_bytes));
    return {};
  }

 private:
  void read_values(std::span<const std::byte> rows) {
    if (dtype_ == Dtype::bf16) {
      values_.clear();
      for (const uint16_t code : values_of<uint16_t>(rows))
        values_.push_back(bf16_to_f32(code));
      return;
    }
    const std::span<const uint8_t> fp8(reinterpret_cast<const uint8_t*>(rows.data()), rows.size());
    const uint64_t row_scales = ceil_div(columns_, kBlock);
    values_.resize(fp8.size());
    (void)kernels::dequantise_rows(fp8, columns_, std::span(fp8_scales_).subspan(blocks_++ * row_scales, row_scales),
                                   kBlock, std::span(values_));
  }

  const FourBitForm& form_;
  Dtype dtype_;
  uint64_t columns_;
  std::vector<float> fp8_scales_;
  uint64_t taken_ = 0;   // bytes of the tensor
  uint64_t blocks_ = 0;  // of rows, converted
  bool finished_ = false;
  std::vector<float> values_;
  std::array<std::vector<std::byte>, 2> made_;
  kernels::Loss loss_;
};

/// One of its parts. The codes report what rounding has cost.
class FourBitPart final : public Converter {
 public:
  FourBitPart(std::shared_ptr<FourBitQuantiser> quantiser, FourBitQuantiser::Part part)
      : quantiser_(std::move(quantiser)), part_(part) {}

  Result<void> take(std::span<const std::byte> bytes, const ByteSink& sink) override {
    TRY(quantiser_->take_at(at_, bytes));
    at_ += bytes.size();
    return quantiser_->hand_on(part_, sink);
  }
  Result<void> finish(const ByteSink& sink) override {
    TRY(quantiser_->finish_once());
    return quantiser_->hand_on(part_, sink);
  }
  std::optional<kernels::Loss> loss() const override {
    return part_ == FourBitQuantiser::codes ? quantiser_->loss() : std::nullopt;
  }

 private:
  std::shared_ptr<FourBitQuantiser> quantiser_;
  FourBitQuantiser::Part part_;
  uint64_t at_ = 0;  // offset in the tensor of the next byte
};

/// What follows from the tensor's shape or from nothing, whatever its bytes.
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
  const std::array<int64_t, 2> shape{narrow<int64_t>(source.shape.at(0)), narrow<int64_t>(source.shape.at(1))};
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
  std::shared_ptr<FourBitQuantiser> quantiser;  // of both parts
  const auto four_bits = [&](const FourBitForm& form, FourBitQuantiser::Part part) {
    if (!quantiser) quantiser = std::make_shared<FourBitQuantiser>(form, source.dtype, columns(), scales);
    return std::make_unique<FourBitPart>(quantiser, part);
  };
  const auto make = [&](Conversion conversion) -> std::unique_ptr<Converter> {
    switch (conversion) {
      case Conversion::none: return nullptr;
      case Conversion::fp8_to_bf16: return std::make_unique<Dequantiser<uint16_t>>(columns(), scales);
      case Conversion::fp8_to_f32: return std::make_unique<Dequantiser<float>>(columns(), scales);
      case Conversion::bf16_to_fp8: return std::make_unique<Quantiser>(columns(), false);
      case Conversion::bf16_scales: return std::make_unique<Quantiser>(columns(), true);
      case Conversion::f32_to_e8m0: return std::make_unique<ScaleNarrower>();
      case Conversion::int4_codes: return four_bits(kInt4Form, FourBitQuantiser::codes);
      case Conversion::int4_scales: return four_bits(kInt4Form, FourBitQuantiser::scales);
      case Conversion::int4_shape: return shape_of(source);
      case Conversion::nvfp4_codes: return four_bits(kNvfp4Form, FourBitQuantiser::codes);
      case Conversion::nvfp4_scales: return four_bits(kNvfp4Form, FourBitQuantiser::scales);
      case Conversion::nvfp4_global:
        return std::make_unique<Constant>(std::span<const float>(&kernels::kNvfp4Global, 1));
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
