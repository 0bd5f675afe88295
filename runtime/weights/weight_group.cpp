#include "runtime/weights/weight_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "format/base/page_range.h"
#include "format/base/size.h"
#include "kernels/cpu/cpu_device.h"

namespace dspack::runtime {

namespace {

// Kernels read whole vector registers, at most 64 bytes wide; Device::allocate aligns the start to that.
constexpr uint64_t kAlignment = 64;
// Large enough that a read is not dominated by its call, small enough to stay in the last-level cache until uploaded.
constexpr uint64_t kUploadBytes = 4ULL << 20;
constexpr uint64_t kWorthMapping = 2 * kMapGrid;

}  // namespace

uint64_t WeightGroup::place(const format::StoredPlane& plane) {
  uint64_t offset = size_bytes_;
  if (is_mapped(plane)) offset = round_up(offset, kMapGrid) + plane.elements().range.begin % kMapGrid;
  parts_.push_back({.plane = plane, .offset = offset});
  size_bytes_ = round_up(offset + plane.bytes, is_mapped(plane) ? kMapGrid : kAlignment);
  return offset;
}

// Small planes are not worth whole pieces of the mapping grid.
bool WeightGroup::is_mapped(const format::StoredPlane& plane) const {
  return context_.in_place && plane.make == nullptr && plane.bytes >= kWorthMapping &&
         plane.elements().range.begin % plane.alignment == 0;
}

Result<void> WeightGroup::add_linear(Linear* into, std::string_view name, uint32_t out, uint32_t in) {
  TRY_ASSIGN(const format::StoredMatrix matrix,
             format::find_matrix(context_.access.catalogue(), name, out, in, context_.quantization));
  LinearTarget target{.into = into, .form = matrix.form, .planes = {}};
  for (size_t i = 0; i < matrix.planes.size(); ++i) {
    const format::StoredPlane& plane = matrix.planes[i];
    if (!plane.empty()) target.planes[i] = place(plane);
  }
  linears_.push_back(target);
  return {};
}

Result<void> WeightGroup::add_vector(kernels::Slice* into, std::string_view name, uint32_t length) {
  return add_values(into, name, {length});
}

Result<void> WeightGroup::add_table(kernels::Slice* into, std::string_view name, uint32_t rows, uint32_t cols) {
  return add_values(into, name, {rows, cols});
}

Result<void> WeightGroup::add_values(kernels::Slice* into, std::string_view name, const std::vector<uint64_t>& shape) {
  const format::Checkpoint& checkpoint = context_.access.catalogue();
  TRY_ASSIGN(const auto* tensor, format::find_tensor(checkpoint, name, shape));
  const uint64_t length = std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies());
  if (tensor->dtype != Dtype::f32 && tensor->dtype != Dtype::bf16 && tensor->dtype != Dtype::f16) {
    return Error{ErrorKind::unsupported, fmt::format("{} is stored as {}; it can be F32, BF16 or F16",
                                                     place_of(checkpoint, *tensor), to_string(tensor->dtype))};
  }
  // A router bias that is not finite would change the choice of experts without any other sign.
  vectors_.push_back({.into = into, .data = place(format::finite_values(format::widened_plane(*tensor, length)))});
  return {};
}

WeightWork WeightGroup::work() const {
  WeightWork work;
  for (const PlacedPlane& part : parts_)
    work.bytes += round_up(part.plane.bytes, kAlignment);
  for (const LinearTarget& linear : linears_)
    work.multiplications += uint64_t{linear.form.out} * linear.form.in;
  return work;
}

std::vector<const format::TensorEntry*> WeightGroup::tensors() const {
  std::vector<const format::TensorEntry*> all;
  for (const PlacedPlane& part : parts_)
    all.insert(all.end(), part.plane.tensors.begin(), part.plane.tensors.end());
  return all;
}

Result<void> WeightGroup::read_part(const PlacedPlane& part, kernels::Slice to, Staging& staging, WeightPurpose purpose,
                                    const std::stop_token& stop) {
  const format::StoredPlane& plane = part.plane;
  if (plane.is_as_stored()) return read_elements(plane, to, staging, purpose, stop);
  const bool is_host = context_.device.is_host();
  std::span<std::byte> made;
  if (is_host) made = kernels::host_bytes(*to.buffer).subspan(to.offset_bytes, plane.bytes);
  // Elements that are only checked are read to where they are used.
  const bool is_there = is_host && plane.make == nullptr && plane.elements().range.size() == plane.bytes;
  if (is_there) TRY(read_elements(plane, to, staging, purpose, stop));
  std::vector<std::span<const std::byte>> stored;
  staging.stored.resize(plane.tensors.size());
  for (size_t i = 0; i < plane.tensors.size(); ++i) {
    if (i == 0 && is_there) {
      stored.emplace_back(made);
      continue;
    }
    staging.stored[i].resize(plane.tensors[i]->range.size());
    TRY(context_.access.read(*plane.tensors[i], 0, staging.stored[i], purpose, stop));
    stored.emplace_back(staging.stored[i]);
  }
  if (!is_host) {
    staging.made.resize(plane.bytes);
    made = staging.made;
  }
  TRY(plane.finish(context_.access.catalogue(), stored, made));
  if (is_host) return {};
  context_.queue.upload(to, made);
  return context_.queue.finish();  // the staging memory is used again
}

Result<void> WeightGroup::read_elements(const format::StoredPlane& plane, kernels::Slice to, Staging& staging,
                                        WeightPurpose purpose, const std::stop_token& stop) {
  const uint64_t total = plane.elements().range.size();
  if (is_mapped(plane)) {
    const auto over = kernels::host_bytes(*to.buffer).subspan(to.offset_bytes, total);
    auto mapped = context_.access.weights().map(plane.elements().file, plane.elements().range.begin, over);
    if (mapped) {
      context_.access.count(purpose, total);
      return {};
    }
    const ErrorKind kind = mapped.error().kind;
    if (kind != ErrorKind::unsupported && kind != ErrorKind::budget) return mapped;  // otherwise it is read
  }
  staging.made.resize(std::min(kUploadBytes, total));
  for (uint64_t done = 0; done < total;) {
    const auto piece = std::span(staging.made).first(std::min(kUploadBytes, total - done));
    TRY(context_.access.read(plane.elements(), done, piece, purpose, stop));
    context_.queue.upload(to.at(done), piece);
    TRY(context_.queue.finish());  // the staging memory is used again
    done += piece.size();
  }
  return {};
}

Result<std::unique_ptr<kernels::Buffer>> WeightGroup::load(WeightPurpose purpose, const std::stop_token& stop) {
  const bool is_laid = std::ranges::any_of(parts_, [this](const PlacedPlane& part) { return is_mapped(part.plane); });
  TRY_ASSIGN(auto buffer, is_laid ? kernels::make_mapped_memory(size_bytes_) : context_.device.allocate(size_bytes_));
  Staging staging;
  for (const PlacedPlane& part : parts_) {
    if (stop.stop_requested()) return Error{ErrorKind::cancelled, "loading was interrupted"};
    TRY(read_part(part, {.buffer = buffer.get(), .offset_bytes = part.offset}, staging, purpose, stop));
  }
  bind(*buffer);
  return buffer;
}

void WeightGroup::bind(kernels::Buffer& buffer) {
  DSPACK_CHECK(buffer.size_bytes() >= size_bytes_, "a smaller buffer");
  for (LinearTarget& target : linears_) {
    kernels::Weight weight{target.form};
    for (size_t i = 0; i < target.planes.size(); ++i) {
      if (target.planes[i]) weight.planes[i] = {.buffer = &buffer, .offset_bytes = *target.planes[i]};
    }
    *target.into = Linear(weight);
  }
  for (const VectorTarget& target : vectors_) {
    *target.into = {.buffer = &buffer, .offset_bytes = target.data};
  }
}

}  // namespace dspack::runtime
