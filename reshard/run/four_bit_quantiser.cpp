#include "reshard/run/four_bit_quantiser.h"

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
#include "reshard/run/row_converter.h"

namespace dspack::reshard {
using format::ByteSink;

/// How a four-bit form encodes rows of values.
struct FourBitForm {
  std::string_view name;
  uint64_t group = 0;        // values that share a scale
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

namespace {

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

}  // namespace

/// BF16 rows, or FP8 or FP4 rows and their scales -> four-bit codes and their scales, passed on by two converters.
class FourBitQuantiser final : public RowConverter {
 public:
  enum Part : uint8_t { codes, scales };

  FourBitQuantiser(const FourBitForm& form, const format::TensorEntry& source, std::vector<float> stored_scales)
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
  Result<void> hand_on(Part part, const ByteSink& sink) {
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
    const auto to = append(made_[codes], count / 2);
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
    } else if (dtype_ == Dtype::i8) {
      const kernels::WeightAt<const std::byte*> matrix{
          {.coding = format::Coding::e2m1,
           .out = narrow<uint32_t>(values_.size() / columns_),
           .in = narrow<uint32_t>(columns_),
           .block_out = 1,
           .block_in = kernels::kMxfp4Group,
           .scale = format::ScaleCoding::f32},
          {std::as_bytes(rows).data(), std::as_bytes(stored_scales).data()}};
      kernels::decode_rows(matrix, 0, values_);
    } else {
      (void)kernels::dequantise_rows(rows, columns_, stored_scales, kBlock, std::span(values_));
    }
  }

  Result<void> check_values() const {
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

  const FourBitForm& form_;
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

namespace {

/// One of the two parts. The codes report the loss.
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

}  // namespace

std::unique_ptr<Converter> FourBitParts::part(Conversion conversion) {
  const bool is_int4 = conversion == Conversion::int4_codes || conversion == Conversion::int4_scales;
  const bool is_codes = conversion == Conversion::int4_codes || conversion == Conversion::nvfp4_codes;
  if (!quantiser_) {
    quantiser_ = std::make_shared<FourBitQuantiser>(is_int4 ? kInt4Form : kNvfp4Form, source_, scales_);
  }
  return std::make_unique<FourBitPart>(quantiser_, is_codes ? FourBitQuantiser::codes : FourBitQuantiser::scales);
}

}  // namespace dspack::reshard
