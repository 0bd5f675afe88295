#include "reshard/run/matrix_decoder.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace dspack::reshard {
namespace {

using format::ByteSink;
using format::StoredPlane;

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

std::unique_ptr<Converter> make_matrix_decoder(MatrixSource source, Conversion conversion) {
  DSPACK_CHECK(decodes(conversion), "no conversion that decodes");
  return std::make_unique<MatrixDecoder>(std::move(source), conversion == Conversion::decoded_to_bf16);
}

}  // namespace dspack::reshard
