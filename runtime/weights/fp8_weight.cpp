#include <fmt/format.h>

#include <array>

#include "format/base/checked.h"
#include "runtime/weights/stored_kinds.h"

namespace dspack::runtime {

namespace {

// "scale" is how DeepSeek's own conversion names it. input_scale and activation_scale are factors with which other
// programs round activations to FP8; here activations stay FP32, which is what they approximate, so they are not read.
constexpr std::array<std::string_view, 6> kFp8Parts = {"weight", "weight_scale_inv", "weight_scale",
                                                    "scale",  "input_scale",      "activation_scale"};

// The block length of a side of `length` values under `count` scales; 0 when several lengths are possible or none is.
// A released block length is a power of two, so at most one of the candidates counts.
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

// The scales' shape as rows and columns: a scalar, [1] and [out] mean per tensor and per channel.
std::optional<std::pair<uint64_t, uint64_t>> scale_grid(const std::vector<uint64_t>& shape) {
  if (shape.empty()) return std::pair<uint64_t, uint64_t>{1, 1};
  if (shape.size() == 1) return std::pair<uint64_t, uint64_t>{shape[0], 1};
  if (shape.size() == 2) return std::pair<uint64_t, uint64_t>{shape[0], shape[1]};
  return std::nullopt;
}

bool is_scale_type(Dtype dtype) {
  return dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16 || dtype == Dtype::f8_e8m0;
}

Result<void> take_blocks(const format::Checkpoint& checkpoint, LinearSource& source,
                         const std::optional<BlockSize>& block) {
  kernels::Weight& form = source.form;
  const auto grid = scale_grid(source.scale->shape);
  const auto fail = [&](std::string_view reason) {
    return Error{ErrorKind::invalid, fmt::format("{}: scales of shape {} do not fit a weight [{}, {}]{}",
                                                 place_of(checkpoint, *source.scale), shown_shape(source.scale->shape),
                                                 form.out, form.in, reason)};
  };
  if (!grid) return fail("");
  if (block) {
    form.block_out = block->out;
    form.block_in = block->in;
    if (grid->first != ceil_div(form.out, block->out) || grid->second != ceil_div(form.in, block->in)) {
      return fail(fmt::format(" in blocks of [{}, {}] (weight_block_size in config.json)", block->out, block->in));
    }
    return {};
  }
  form.block_out = block_length(form.out, grid->first);
  form.block_in = block_length(form.in, grid->second);
  if (form.block_out == 0 || form.block_in == 0) {
    return fail("; give weight_block_size in the quantization_config of config.json");
  }
  return {};
}

bool stores_fp8(const format::Checkpoint& checkpoint, std::string_view name) {
  const auto tensor = find_tensor(checkpoint, name);
  return tensor && (*tensor)->dtype == Dtype::f8_e4m3;
}

Result<LinearSource> find_fp8(const format::Checkpoint& checkpoint, const LinearRequest& request) {
  TRY_ASSIGN(LinearSource source, find_whole_weight(checkpoint, request));
  source.scale = find_scale(checkpoint, *source.weight);
  if (source.scale == nullptr) return missing_scale(checkpoint, *source.weight);
  if (!is_scale_type(source.scale->dtype)) {
    return Error{ErrorKind::unsupported,
                 fmt::format("{} is stored as {}; scales can be F32, BF16, F16 or F8_E8M0",
                             place_of(checkpoint, *source.scale), to_string(source.scale->dtype))};
  }
  TRY(take_blocks(checkpoint, source, request.block));
  return source;
}

}  // namespace

StoredKind fp8_kind() {
  return {.description = "F8_E4M3", .parts = kFp8Parts, .stores = stores_fp8, .find = find_fp8};
}

}  // namespace dspack::runtime
