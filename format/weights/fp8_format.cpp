#include <fmt/format.h>

#include "format/base/size.h"
#include "format/weights/weight_format.h"

namespace dspack::format {

namespace {

// "scale" is the name in DeepSeek's own conversion. input_scale and activation_scale are factors for rounding
// activations to FP8 in other programs; here activations stay FP32, which they approximate, so these tensors are not
// read.
constexpr std::array<std::string_view, 6> kFp8Suffixes = {"weight", "weight_scale_inv", "weight_scale",
                                                          "scale",  "input_scale",      "activation_scale"};

// The block length of a dimension of `length` values with `count` scales; 0 if several lengths are possible or none is.
// Released block lengths are powers of two, so only those are candidates.
uint32_t block_length(uint32_t length, uint64_t count) {
  if (count == 1) return length;
  if (count == length) return 1;
  uint32_t found = 0;
  for (uint32_t block = 2; block < length; block *= 2) {
    if (ceil_div(length, block) != count) continue;
    if (found != 0) return 0;
    found = block;
  }
  return found;
}

// The scales' shape as rows and columns: a scalar and [1] mean per tensor, [out] per channel.
std::optional<std::pair<uint64_t, uint64_t>> scale_grid(const std::vector<uint64_t>& shape) {
  if (shape.empty()) return std::pair<uint64_t, uint64_t>{1, 1};
  if (shape.size() == 1) return std::pair<uint64_t, uint64_t>{shape[0], 1};
  if (shape.size() == 2) return std::pair<uint64_t, uint64_t>{shape[0], shape[1]};
  // NVIDIA's FP8_PB_WO: blocks with one value each.
  if (shape.size() == 4 && shape[1] == 1 && shape[3] == 1) return std::pair<uint64_t, uint64_t>{shape[0], shape[2]};
  return std::nullopt;
}

// The rows and columns that share a scale. Errors: invalid.
Result<BlockSize> blocks_of(const Checkpoint& checkpoint, const WeightForm& form, const TensorEntry& scales,
                            const std::optional<BlockSize>& block) {
  const auto grid = scale_grid(scales.shape);
  if (!grid) return misfit(checkpoint, scales, form, "");
  if (block) {
    if (grid->first == ceil_div(form.out, block->out) && grid->second == ceil_div(form.in, block->in)) return *block;
    return misfit(checkpoint, scales, form,
                  fmt::format(" in blocks of [{}, {}] (weight_block_size in config.json)", block->out, block->in));
  }
  const BlockSize found{.out = block_length(form.out, grid->first), .in = block_length(form.in, grid->second)};
  if (found.out != 0 && found.in != 0) return found;
  return misfit(checkpoint, scales, form, "; give weight_block_size in the quantization_config of config.json");
}

bool stores_fp8(const Checkpoint& checkpoint, std::string_view name) {
  const auto tensor = find_tensor(checkpoint, name);
  return tensor && (*tensor)->dtype == Dtype::f8_e4m3;
}

Result<StoredMatrix> find_fp8(const Checkpoint& checkpoint, const MatrixRequest& request) {
  TRY_ASSIGN(StoredMatrix matrix, find_codes(checkpoint, request));
  const TensorEntry& weight = matrix.planes[kCodes].elements();
  TRY(check_scales(checkpoint, weight));
  const TensorEntry& scales = *checkpoint.find_scale(weight.name);
  TRY_ASSIGN(const BlockSize block, blocks_of(checkpoint, matrix.form, scales, request.stored.block));
  TRY(add_scales(checkpoint, scales, block, matrix));
  return matrix;
}

Result<MatrixShape> fp8_shape(const Checkpoint& checkpoint, std::string_view name, const Quantization& /*stored*/) {
  TRY_ASSIGN(const auto* codes, find_tensor(checkpoint, name));
  return shape_of_codes(checkpoint, *codes, 1);
}

constexpr std::array<ScaledCodes, 1> kFp8Scaled = {{
    {.ending = ".weight", .dtype = Dtype::f8_e4m3, .name = "FP8", .scale = "weight_scale_inv"},
}};

}  // namespace

WeightFormat fp8_format() {
  return {.description = "F8_E4M3",
          .suffixes = kFp8Suffixes,
          .stores = stores_fp8,
          .find = find_fp8,
          .scaled = kFp8Scaled,
          .shape = fp8_shape};
}

}  // namespace dspack::format
