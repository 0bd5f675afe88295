#include "runtime/weights/linear.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>

#include "format/base/checked.h"

namespace dspack::runtime {

namespace {

std::string shown(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

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

const format::TensorEntry* find_scale(const format::Checkpoint& checkpoint, std::string_view name) {
  for (const std::string& candidate : format::scale_names(name)) {
    if (const auto* found = checkpoint.find(candidate); found != nullptr) return found;
  }
  return nullptr;
}

Result<void> take_blocks(const format::Checkpoint& checkpoint, LinearSource& source,
                         const std::optional<BlockSize>& block) {
  kernels::Weight& form = source.form;
  const auto grid = scale_grid(source.scale->shape);
  const auto fail = [&](std::string_view reason) {
    return Error{ErrorKind::invalid, fmt::format("{}: scales of shape {} do not fit a weight [{}, {}]{}",
                                                 place_of(checkpoint, *source.scale), shown(source.scale->shape),
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

}  // namespace

uint64_t LinearSource::scale_values() const {
  return scale == nullptr ? 0 : ceil_div(form.out, form.block_out) * ceil_div(form.in, form.block_in);
}

std::string place_of(const format::Checkpoint& checkpoint, const format::TensorEntry& tensor) {
  return fmt::format("{}: {}", checkpoint.files()[tensor.file].path, tensor.name);
}

Result<const format::TensorEntry*> find_tensor(const format::Checkpoint& checkpoint, std::string_view name) {
  if (const auto* found = checkpoint.find(name); found != nullptr) return found;
  return Error{ErrorKind::not_found,
               fmt::format("tensor {} is missing from the checkpoint; the download may be incomplete", name)};
}

Result<const format::TensorEntry*> find_tensor(const format::Checkpoint& checkpoint, std::string_view name,
                                               const std::vector<uint64_t>& shape) {
  TRY_ASSIGN(const auto* found, find_tensor(checkpoint, name));
  if (found->shape == shape) return found;
  return Error{ErrorKind::invalid, fmt::format("{} has shape {} where config.json asks for {}",
                                               place_of(checkpoint, *found), shown(found->shape), shown(shape))};
}

Result<LinearSource> find_linear(const format::Checkpoint& checkpoint, std::string_view name, uint32_t out, uint32_t in,
                                 const std::optional<BlockSize>& block) {
  LinearSource source;
  TRY_ASSIGN(source.weight, find_tensor(checkpoint, name, {out, in}));
  source.form.dtype = source.weight->dtype;
  source.form.out = out;
  source.form.in = in;
  source.scale = find_scale(checkpoint, name);
  const std::string place = place_of(checkpoint, *source.weight);
  const Dtype dtype = source.weight->dtype;
  if (dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16) {
    if (source.scale == nullptr) return source;
    return Error{ErrorKind::invalid, fmt::format("{} is {} and yet has scales ({}); its values are not certain", place,
                                                 to_string(dtype), source.scale->name)};
  }
  if (dtype != Dtype::f8_e4m3) {
    return Error{ErrorKind::unsupported,
                 fmt::format("{} is stored as {}; F8_E4M3, BF16, F16 and F32 can be run", place, to_string(dtype))};
  }
  if (source.scale == nullptr) {
    return Error{ErrorKind::not_found,
                 fmt::format("{} is FP8 but its scale {} is missing; fetch the file that holds it", place,
                             format::scale_names(name).front())};
  }
  if (!is_scale_type(source.scale->dtype)) {
    return Error{ErrorKind::unsupported,
                 fmt::format("{} is stored as {}; scales can be F32, BF16, F16 or F8_E8M0",
                             place_of(checkpoint, *source.scale), to_string(source.scale->dtype))};
  }
  TRY(take_blocks(checkpoint, source, block));
  return source;
}

}  // namespace dspack::runtime
