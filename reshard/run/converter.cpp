#include "reshard/run/converter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "format/base/size.h"
#include "format/dtype.h"
#include "kernels/quantise_groups.h"
#include "reshard/plan/transform.h"

namespace dspack::reshard {
namespace {

using format::ByteSink;
using format::StoredPlane;

/// Bytes as values; an incomplete value at the end is ignored.
template <class T>
std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::ranges::copy(bytes.first(values.size() * sizeof(T)), std::as_writable_bytes(std::span(values)).begin());
  return values;
}

/// Collects the bytes of a matrix into groups of whole rows and converts each group.
class RowConverter : public Converter {
 public:
  RowConverter(uint64_t row_bytes, uint64_t rows_at_once) : group_bytes_(row_bytes * rows_at_once) {
    group_.reserve(group_bytes_);
  }

  Result<void> take(std::span<const std::byte> bytes, const format::ByteSink& sink) override {
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min<uint64_t>(bytes.size(), group_bytes_ - group_.size()));
      group_.insert(group_.end(), part.begin(), part.end());
      bytes = bytes.subspan(part.size());
      if (group_.size() == group_bytes_) TRY(end_group(sink));
    }
    return {};
  }

  Result<void> finish(const format::ByteSink& sink) override {
    return group_.empty() ? Result<void>() : end_group(sink);
  }

 protected:
  /// `rows`: a full group of whole rows, or fewer at the end.
  virtual Result<void> convert(std::span<const std::byte> rows, const format::ByteSink& sink) = 0;

 private:
  Result<void> end_group(const format::ByteSink& sink) {
    TRY(convert(group_, sink));
    group_.clear();
    return {};
  }

  uint64_t group_bytes_;
  std::vector<std::byte> group_;
};

// Codes of matrices and their scales a group of columns: two tensors from one search.

/// How a form encodes rows of values.
struct GroupForm {
  std::string_view name;
  Conversion codes, scales;
  uint64_t group = 0;  // values that share a scale
  uint64_t code_bits = 4;
  uint64_t scale_bytes = 0;  // bytes per scale
  float largest = 0;         // largest magnitude that it can hold
  kernels::Loss (*quantise)(std::span<const float> values, std::span<uint8_t> codes, std::span<std::byte> scales);
  /// Whether MXFP4 codes can be kept under these scales, so that decoded values are not needed; nullptr: never.
  bool (*keeps)(std::span<const float> stored_scales) = nullptr;
  /// Converts MXFP4; set if `keeps` is.
  kernels::Loss (*recode)(std::span<const uint8_t> stored, std::span<const float> stored_scales,
                          std::span<const float> values, std::span<uint8_t> codes,
                          std::span<std::byte> scales) = nullptr;
};

/// Integers with BF16 scales.
template <kernels::Loss (*quantise)(std::span<const float>, std::span<uint8_t>, std::span<uint16_t>)>
kernels::Loss quantise_integers(std::span<const float> values, std::span<uint8_t> codes, std::span<std::byte> scales) {
  std::vector<uint16_t> halves(scales.size() / sizeof(uint16_t));
  const kernels::Loss loss = quantise(values, codes, halves);
  std::ranges::copy(std::as_bytes(std::span(halves)), scales.begin());
  return loss;
}

const GroupForm kInt4Form{.name = "int4",
                          .codes = Conversion::int4_codes,
                          .scales = Conversion::int4_scales,
                          .group = kernels::kIntegerGroup,
                          .scale_bytes = sizeof(uint16_t),
                          .largest = std::numeric_limits<float>::max(),
                          .quantise = quantise_integers<kernels::quantise_int4>};
const GroupForm kInt8Form{.name = "int8",
                          .codes = Conversion::int8_codes,
                          .scales = Conversion::int8_scales,
                          .group = kernels::kIntegerGroup,
                          .code_bits = 8,
                          .scale_bytes = sizeof(uint16_t),
                          .largest = std::numeric_limits<float>::max(),
                          .quantise = quantise_integers<kernels::quantise_int8>};
const GroupForm kNvfp4Form{
    .name = "NVFP4",
    .codes = Conversion::nvfp4_codes,
    .scales = Conversion::nvfp4_scales,
    .group = kernels::kNvfp4Group,
    .scale_bytes = sizeof(uint8_t),
    .largest = kernels::kNvfp4Largest,
    .quantise =
        [](auto values, auto codes, auto scales) {
          return kernels::quantise_nvfp4(values, codes, {reinterpret_cast<uint8_t*>(scales.data()), scales.size()});
        },
    .keeps = kernels::nvfp4_holds,
    .recode =
        [](auto stored, auto stored_scales, auto values, auto codes, auto scales) {
          return kernels::mxfp4_to_nvfp4(stored, stored_scales, values, codes,
                                         {reinterpret_cast<uint8_t*>(scales.data()), scales.size()});
        }};

/// BF16 rows, or FP8 or FP4 rows and their scales -> codes and their scales, passed on by two converters.
class GroupQuantiser final : public RowConverter {
 public:
  enum OutputPlane : uint8_t { codes, scales };

  GroupQuantiser(const GroupForm& form, const format::TensorEntry& source, std::vector<float> stored_scales)
      : RowConverter(bytes_of(source.dtype, source.shape.at(1)), kBlock),
        form_(form),
        dtype_(source.dtype),
        columns_(matrix_columns(source)),
        stored_scales_(std::move(stored_scales)) {}

  std::optional<kernels::Loss> loss() const override { return loss_; }

  /// Takes the tensor's bytes from offset `at` on.
  Result<void> take_at(uint64_t at, std::span<const std::byte> bytes) {
    if (at != taken_) return {};  // the other converter has passed these bytes already
    taken_ += bytes.size();
    return take(bytes, {});
  }
  Result<void> finish_once() {
    if (std::exchange(finished_, true)) return {};
    return finish({});
  }
  /// Passes on the bytes of one part that were made since the last call.
  Result<void> hand_on(OutputPlane part, const ByteSink& sink) {
    TRY(sink(made_[part]));
    made_[part].clear();
    return {};
  }

 protected:
  Result<void> convert(std::span<const std::byte> rows, const ByteSink& /*sink*/) override {
    const std::span<const uint8_t> stored(reinterpret_cast<const uint8_t*>(rows.data()), rows.size());
    const uint64_t count = dtype_ == Dtype::i8 ? 2 * stored.size() : stored.size() / bytes_of(dtype_, 1);
    const std::span<const float> stored_scales = next_scales(count);
    const bool is_recoded = dtype_ == Dtype::i8 && form_.keeps != nullptr;
    values_.clear();
    if (!is_recoded || !form_.keeps(stored_scales)) {
      values_.resize(count);
      read_values(stored, stored_scales);
      TRY(check_values());
    }
    const auto append = [](std::vector<std::byte>& to, uint64_t bytes) {
      to.resize(to.size() + bytes);
      return std::span(to).last(bytes);
    };
    const auto to = append(made_[codes], count * form_.code_bits / 8);
    const std::span<uint8_t> to_codes(reinterpret_cast<uint8_t*>(to.data()), to.size());
    const auto to_scales = append(made_[scales], count / form_.group * form_.scale_bytes);
    loss_ += is_recoded ? form_.recode(stored, stored_scales, values_, to_codes, to_scales)
                        : form_.quantise(values_, to_codes, to_scales);
    return {};
  }

 private:
  /// The scales of the next `count` values: one row of FP8's blocks, FP4's groups; none for BF16.
  std::span<const float> next_scales(uint64_t count) {
    if (dtype_ == Dtype::bf16) return {};
    const uint64_t taken = dtype_ == Dtype::i8 ? count / kernels::kMxfp4Group : ceil_div(columns_, kBlock);
    scales_taken_ += taken;
    return std::span<const float>(stored_scales_).subspan(scales_taken_ - taken, taken);
  }

  /// Fills values_.
  void read_values(std::span<const uint8_t> rows, std::span<const float> stored_scales) {
    if (dtype_ == Dtype::bf16) {
      std::ranges::transform(values_of<uint16_t>(std::as_bytes(rows)), values_.begin(), bf16_to_f32);
    } else {
      const bool is_fp4 = dtype_ == Dtype::i8;
      const kernels::WeightAt<const std::byte*> matrix{
          {.coding = is_fp4 ? format::Coding::e2m1 : format::Coding::f8_e4m3,
           .out = narrow<uint32_t>(values_.size() / columns_),
           .in = narrow<uint32_t>(columns_),
           .block_out = is_fp4 ? 1U : narrow<uint32_t>(kBlock),
           .block_in = is_fp4 ? kernels::kMxfp4Group : narrow<uint32_t>(kBlock),
           .scale = format::ScaleCoding::f32},
          {std::as_bytes(rows).data(), std::as_bytes(stored_scales).data()}};
      kernels::decode_rows(matrix, 0, values_);
    }
  }

  Result<void> check_values() const {
    if (kernels::are_within(values_, form_.largest)) return {};
    for (const float value : values_) {
      if (std::abs(value) <= form_.largest) continue;
      const std::string what =
          std::isfinite(value)
              ? fmt::format("{}, more than the {} that {} holds here", value, form_.largest, form_.name)
              : fmt::format("an infinity or NaN, which {} with a scale cannot", form_.name);
      return Error{ErrorKind::unsupported, fmt::format("holds {}; exempt the tensor by a selector", what)};
    }
    return {};
  }

  const GroupForm& form_;
  Dtype dtype_;
  uint64_t columns_;
  std::vector<float> stored_scales_;
  uint64_t taken_ = 0;         // bytes of the tensor taken so far
  uint64_t scales_taken_ = 0;  // scales of stored_scales_ used so far
  bool finished_ = false;
  std::vector<float> values_;
  std::array<std::vector<std::byte>, 2> made_;
  kernels::Loss loss_;
};

/// One of the two parts. The codes report the loss.
class GroupPart final : public Converter {
 public:
  GroupPart(std::shared_ptr<GroupQuantiser> quantiser, GroupQuantiser::OutputPlane part)
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
    return part_ == GroupQuantiser::codes ? quantiser_->loss() : std::nullopt;
  }

 private:
  std::shared_ptr<GroupQuantiser> quantiser_;
  GroupQuantiser::OutputPlane part_;
  uint64_t at_ = 0;  // offset in the tensor of the next byte
};

/// The converters for the parts of one matrix. They get the same bytes; the first to get a piece has it converted.
class GroupParts {
 public:
  /// `source`: BF16, FP8 with one scale per block of 128 x 128, or FP4 with one scale per 32 columns of a row.
  GroupParts(const format::TensorEntry& source, const std::vector<float>& scales) : source_(source), scales_(scales) {}

  /// Precondition: a conversion to codes or scales, of the same form in all calls.
  [[nodiscard]] std::unique_ptr<Converter> part(Conversion conversion);

 private:
  const format::TensorEntry& source_;
  const std::vector<float>& scales_;
  std::shared_ptr<GroupQuantiser> quantiser_;
};

std::unique_ptr<Converter> GroupParts::part(Conversion conversion) {
  for (const GroupForm* form : {&kInt4Form, &kInt8Form, &kNvfp4Form}) {
    if (conversion != form->codes && conversion != form->scales) continue;
    if (!quantiser_) quantiser_ = std::make_shared<GroupQuantiser>(*form, source_, scales_);
    return std::make_unique<GroupPart>(quantiser_,
                                       conversion == form->codes ? GroupQuantiser::codes : GroupQuantiser::scales);
  }
  DSPACK_CHECK(false, "no codes in groups");
  return nullptr;
}

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

class MatrixDecoder final : public Converter {
 public:
  MatrixDecoder(MatrixSource source, bool is_rounded)
      : source_(std::move(source)), codes_(&source_.matrix.planes[format::kCodes].elements()), is_rounded_(is_rounded) {
    source_.beside[codes_].reserve(codes_->range.size());
  }

  Result<void> take(std::span<const std::byte> bytes, const ByteSink& /*sink*/) override {
    std::vector<std::byte>& codes = source_.beside[codes_];
    codes.insert(codes.end(), bytes.begin(), bytes.end());
    return {};
  }

  Result<void> finish(const ByteSink& sink) override {
    const format::WeightForm& form = source_.matrix.form;
    kernels::WeightAt<const std::byte*> at{form, {}};
    std::array<std::vector<std::byte>, format::kPlanes> made;
    for (size_t i = 0; i < made.size(); ++i) {
      const StoredPlane& plane = source_.matrix.planes[i];
      if (plane.empty()) continue;
      TRY_ASSIGN(at.planes[i], make_plane(plane, made[i]));
    }
    for (uint64_t row = 0; row < form.out; row += kBlock) {
      const uint64_t rows = std::min<uint64_t>(kBlock, form.out - row);
      values_.resize(rows * form.in);
      kernels::decode_rows(at, row, values_);
      TRY(hand_on(row, sink));
    }
    return {};
  }

  std::optional<kernels::Loss> loss() const override { return is_rounded_ ? std::optional(loss_) : std::nullopt; }

 private:
  /// Checks a plane and returns its bytes: as stored, or made in `made`.
  Result<const std::byte*> make_plane(const StoredPlane& plane, std::vector<std::byte>& made) {
    std::vector<std::span<const std::byte>> stored;
    for (const format::TensorEntry* tensor : plane.tensors)
      stored.emplace_back(source_.beside.at(tensor));
    std::vector<std::byte>& elements = source_.beside.at(plane.tensors.front());
    if (plane.make != nullptr) made.resize(plane.bytes);
    const std::span<std::byte> to = plane.make != nullptr ? std::span(made) : std::span(elements);
    TRY(plane.finish(source_.catalogue, stored, to));
    return to.data();
  }

  /// Passes on the values of the rows from `row` on.
  Result<void> hand_on(uint64_t row, const ByteSink& sink) {
    if (!is_rounded_) return sink(std::as_bytes(std::span(values_)));
    rounded_.resize(values_.size());
    loss_ += kernels::round_to_bf16(values_, rounded_);
    if (!std::isfinite(loss_.squared_error)) {
      return Error{ErrorKind::unsupported,
                   fmt::format("holds a value in its rows from {} that is too large for 16 bits; exempt the tensor by "
                               "a selector",
                               row)};
    }
    return sink(std::as_bytes(std::span(rounded_)));
  }

  MatrixSource source_;
  const format::TensorEntry* codes_;
  bool is_rounded_;
  std::vector<float> values_;
  std::vector<uint16_t> rounded_;
  kernels::Loss loss_;
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
  GroupParts groups(source, scales);
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
      case Conversion::int8_codes:
      case Conversion::int8_scales:
      case Conversion::nvfp4_codes:
      case Conversion::nvfp4_scales: return groups.part(conversion);
      case Conversion::packed_shape: return shape_of(source);
      case Conversion::nvfp4_global:
        return std::make_unique<Constant>(std::span<const float>(&kernels::kNvfp4Global, 1));
      case Conversion::decoded_to_bf16:
      case Conversion::decoded_to_f32: break;  // make_matrix_decoder
    }
    DSPACK_CHECK(false, "no conversion");
    return nullptr;
  };
  std::vector<std::unique_ptr<Converter>> converters;
  for (const Conversion conversion : conversions)
    converters.push_back(make(conversion));
  return converters;
}

std::unique_ptr<Converter> make_matrix_decoder(MatrixSource source, Conversion conversion) {
  DSPACK_CHECK(decodes(conversion), "no conversion that decodes");
  return std::make_unique<MatrixDecoder>(std::move(source), conversion == Conversion::decoded_to_bf16);
}

}  // namespace dspack::reshard
