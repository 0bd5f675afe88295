#include "runtime/weights/weight_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "format/base/checked.h"

namespace dspack::runtime {

namespace {

// Kernels read whole vector registers; 64 is the widest, and what Device::allocate promises for the start.
constexpr uint64_t kAlignment = 64;
// Large enough that a read is not dominated by its call, small enough to stay in the last-level cache until uploaded.
// A multiple of every element's size.
constexpr uint64_t kUploadBytes = 4ULL << 20;

template <class T>
T load_as(std::span<const std::byte> stored, size_t index) {
  T value;
  std::memcpy(&value, stored.data() + index * sizeof(T), sizeof(T));
  return value;
}

float widened(Dtype dtype, std::span<const std::byte> stored, size_t index) {
  if (dtype == Dtype::bf16) return bf16_to_f32(load_as<uint16_t>(stored, index));
  if (dtype == Dtype::f16) return f16_to_f32(load_as<uint16_t>(stored, index));
  if (dtype == Dtype::f8_e8m0) return f8_e8m0_to_f32(load_as<uint8_t>(stored, index));
  return load_as<float>(stored, index);
}

}  // namespace

void widen_to_f32(Dtype dtype, std::span<const std::byte> stored, std::span<float> values) {
  DSPACK_CHECK(stored.size() == values.size() * (bits_of(dtype) / 8), "stored bytes and values differ in number");
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = widened(dtype, stored, i);
}

uint64_t WeightGroup::place(const format::TensorEntry& tensor, Form form, uint64_t bytes) {
  const uint64_t offset = size_bytes_;
  parts_.push_back({.tensor = &tensor, .form = form, .offset = offset});
  size_bytes_ = offset + round_up(bytes, kAlignment);
  return offset;
}

Result<void> WeightGroup::add_linear(Linear* into, std::string_view name, uint32_t out, uint32_t in) {
  TRY_ASSIGN(const LinearSource source, find_linear(context_.files.checkpoint(), name, out, in, context_.fp8_block));
  LinearTarget target{.into = into, .form = source.form, .data = 0, .scale = std::nullopt};
  target.data = place(*source.weight, Form::as_stored, source.weight->range.size());
  if (source.scale != nullptr) {
    target.scale = place(*source.scale, Form::as_f32, source.scale_values() * sizeof(float));
  }
  linears_.push_back(target);
  return {};
}

Result<void> WeightGroup::add_vector(kernels::Slice* into, std::string_view name, uint32_t length) {
  const format::Checkpoint& checkpoint = context_.files.checkpoint();
  TRY_ASSIGN(const auto* tensor, find_tensor(checkpoint, name, {length}));
  if (tensor->dtype != Dtype::f32 && tensor->dtype != Dtype::bf16 && tensor->dtype != Dtype::f16) {
    return Error{ErrorKind::unsupported, fmt::format("{} is stored as {}; it can be F32, BF16 or F16",
                                                     place_of(checkpoint, *tensor), to_string(tensor->dtype))};
  }
  vectors_.push_back({.into = into, .data = place(*tensor, Form::as_f32, uint64_t{length} * sizeof(float))});
  return {};
}

std::vector<const format::TensorEntry*> WeightGroup::tensors() const {
  std::vector<const format::TensorEntry*> all;
  for (const Part& part : parts_)
    all.push_back(part.tensor);
  return all;
}

Result<void> WeightGroup::read_part(const Part& part, kernels::Slice to, Staging& staging, ReadPurpose purpose,
                                    const std::stop_token& stop) {
  const uint64_t total = part.tensor->range.size();
  const uint64_t element = std::max(1U, bits_of(part.tensor->dtype) / 8);
  for (uint64_t done = 0; done < total;) {
    const auto piece = std::span(staging.stored).first(std::min<uint64_t>(staging.stored.size(), total - done));
    TRY(context_.files.read(*part.tensor, done, piece, purpose, stop));
    std::span<const std::byte> ready = piece;
    if (part.form == Form::as_f32) {
      staging.values.resize(piece.size() / element);
      widen_to_f32(part.tensor->dtype, piece, staging.values);
      ready = std::as_bytes(std::span(staging.values));
    }
    context_.queue.upload(to, ready);
    TRY(context_.queue.finish());  // the staging memory is used again
    done += piece.size();
    to = to.at(ready.size());
  }
  return {};
}

Result<std::unique_ptr<kernels::Buffer>> WeightGroup::load(ReadPurpose purpose, const std::stop_token& stop) {
  TRY_ASSIGN(auto buffer, context_.device.allocate(size_bytes_));
  uint64_t longest = 0;
  for (const Part& part : parts_)
    longest = std::max(longest, part.tensor->range.size());
  Staging staging;
  staging.stored.resize(std::min(longest, kUploadBytes));
  for (const Part& part : parts_) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "loading was interrupted"};
    TRY(read_part(part, {.buffer = buffer.get(), .offset_bytes = part.offset}, staging, purpose, stop));
  }
  bind(*buffer);
  return buffer;
}

void WeightGroup::bind(kernels::Buffer& buffer) {
  DSPACK_CHECK(buffer.size_bytes() >= size_bytes_, "a smaller buffer");
  for (LinearTarget& target : linears_) {
    target.form.data = {.buffer = &buffer, .offset_bytes = target.data};
    if (target.scale) target.form.scale = {.buffer = &buffer, .offset_bytes = *target.scale};
    *target.into = Linear(target.form);
  }
  for (const VectorTarget& target : vectors_) {
    *target.into = {.buffer = &buffer, .offset_bytes = target.data};
  }
}

}  // namespace dspack::runtime
