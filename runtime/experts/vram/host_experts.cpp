#include "runtime/experts/vram/host_experts.h"

#include <array>
#include <chrono>

#include "format/base/check.h"
#include "kernels/cpu/cpu_device.h"

namespace dspack::runtime {

namespace {

kernels::ExpertsShape scratch_shape(const HostExperts::Shape& shape) {
  return {.hidden = shape.hidden, .inner = shape.inner, .experts = 1, .top_k = shape.top_k, .rows = shape.rows};
}

uint64_t row_bytes(const HostExperts::Shape& shape) {
  return uint64_t{shape.hidden} * sizeof(float);
}

uint64_t rows_bytes(const HostExperts::Shape& shape) {
  return row_bytes(shape) * shape.rows * (1 + uint64_t{shape.top_k});
}

}  // namespace

uint64_t HostExperts::bytes_for(const kernels::Device& host, const Shape& shape) {
  return rows_bytes(shape) + host.experts_scratch_bytes(scratch_shape(shape));
}

Result<std::unique_ptr<HostExperts>> HostExperts::make(kernels::Device& host, kernels::Device& device,
                                                       const Shape& shape) {
  std::unique_ptr<HostExperts> experts(new HostExperts(host, shape));
  TRY_ASSIGN(experts->rows_, device.allocate_host(rows_bytes(shape)));
  TRY_ASSIGN(experts->scratch_, host.allocate(host.experts_scratch_bytes(scratch_shape(shape))));
  return experts;
}

kernels::Rows HostExperts::rows_in(kernels::Buffer& buffer, uint64_t offset, uint32_t rows) const {
  return {.data = {.buffer = &buffer, .offset_bytes = offset},
          .rows = rows,
          .cols = shape_.hidden,
          .stride = shape_.hidden};
}

void HostExperts::begin_layer(kernels::Queue& queue, const kernels::Rows& x) {
  DSPACK_CHECK(x.rows <= shape_.rows && x.stride == x.cols && x.cols == shape_.hidden, "an input of another shape");
  input_rows_ = x.rows;
  queue.download(kernels::host_bytes(*rows_).first(row_bytes(shape_) * x.rows), x.data);
}

double HostExperts::compute(const ExpertWeights& expert, std::span<const uint32_t> assignments, kernels::Queue& queue,
                            const kernels::Rows& parts) {
  const auto start = std::chrono::steady_clock::now();
  const uint64_t parts_at = row_bytes(shape_) * shape_.rows;
  const std::array<kernels::ExpertMatrices, 1> matrices = {
      {{.gate = expert.gate.weight(), .up = expert.up.weight(), .down = expert.down.weight()}}};
  const auto table = host_.make_expert_table(matrices);
  DSPACK_CHECK(table.has_value(), "a table of one expert");
  const kernels::ExpertGroup group{.entry = 0, .parts = assignments};
  queue_->run_expert_parts({.table = table->get(),
                            .x = rows_in(*rows_, 0, input_rows_),
                            .groups = {&group, 1},
                            .top_k = shape_.top_k,
                            .scratch = {.buffer = scratch_.get(), .offset_bytes = 0},
                            .parts = rows_in(*rows_, parts_at, input_rows_ * shape_.top_k)});
  queue_->synchronize();
  for (const uint32_t part : assignments) {
    const uint64_t at = row_bytes(shape_) * part;
    queue.upload(parts.data.at(uint64_t{part} * parts.stride * sizeof(float)),
                 kernels::host_bytes(*rows_).subspan(parts_at + at, row_bytes(shape_)));
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace dspack::runtime
