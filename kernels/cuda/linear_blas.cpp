#include "kernels/cuda/linear_blas.h"

#include <algorithm>

#include "kernels/cuda/linear_blas_kernels.h"
#include "kernels/cuda/linear_tensor.h"

namespace dspack::kernels::cuda {

using gpu::cublaslt::DataType;
using gpu::cublaslt::Matmul;

namespace {

// Sequences of every length have plans of their own; what is asked for again is asked for soon.
constexpr size_t kMostPlans = 4096;

const float* scales_of_all(const Matrix& weight) {
  return static_cast<const float*>(weight.planes[kScales]);
}

}  // namespace

/// What one call of the library multiplies: some input rows by some rows of the weight.
struct LinearBlas::Part {
  gpu::cublaslt::MatmulShape shape;
  gpu::cublaslt::MatmulPlaces places;
};

LinearBlas::~LinearBlas() {
  if (workspace_ != nullptr) gpu::release(workspace_);
}

bool LinearBlas::has_workspace(bool is_recording) {
  if (workspace_ != nullptr) return true;
  if (is_recording || use_->has_no_memory) return false;
  auto memory = gpu::allocate(limits_.total());
  use_->has_no_memory = !memory.has_value();
  if (memory) workspace_ = static_cast<std::byte*>(*memory);
  return memory.has_value();
}

LinearBlas::Part LinearBlas::part_of(const LinearTask& task, const BlasChoice& choice, uint32_t row,
                                     uint32_t out) const {
  const bool is_fp8 = choice.path == BlasPath::fp8;
  const bool is_decoded = choice.path == BlasPath::bf16_decoded;
  const Matrix& weight = task.weight;
  const uint32_t rows = std::min(choice.rows_at_once, choice.rows - row);
  const uint32_t outs = std::min(choice.weight_rows_at_once, weight.out - out);
  std::byte* const inputs = workspace_ + limits_.weight_bytes;
  Part part{.shape = {.type = is_fp8 ? DataType::f8_e4m3 : DataType::bf16,
                      .m = outs,
                      .n = rows,
                      .k = weight.in,
                      .lda = weight.in,
                      .ldb = weight.in,
                      .ldd = task.y.stride},
            .places = {.a = is_decoded ? workspace_ : weight.planes[kCodes],
                       .b = inputs,
                       .d = task.y.data + row * task.y.stride + out}};
  if (is_fp8) {
    part.places.a_scale =
        has_padded_scales(weight) ? scales_of_all(weight) : reinterpret_cast<const float*>(workspace_);
    part.places.b_scale = reinterpret_cast<const float*>(inputs + input_scales_offset(rows, weight.in));
  }
  return part;
}

LinearBlas::Plan& LinearBlas::plan(const Part& part) {
  if (const auto found = plans_.find(part.shape); found != plans_.end()) return found->second;
  Plan made{.matmul = Matmul::plan(*use_->library, part.shape, part.places, limits_.library_bytes)};
  if (made.matmul == nullptr) ++use_->refused_shapes;
  return plans_.emplace(part.shape, std::move(made)).first->second;
}

void LinearBlas::round_inputs(gpu::Stream& stream, const LinearTask& task, const BlasChoice& choice, uint32_t row) {
  const uint32_t rows = std::min(choice.rows_at_once, choice.rows - row);
  std::byte* const to = workspace_ + limits_.weight_bytes;
  RoundInputsTask round{.x = {.data = task.x.data + row * task.x.stride, .stride = task.x.stride},
                        .rows = rows,
                        .in = task.weight.in,
                        .to = to};
  if (choice.path != BlasPath::fp8) return run_round_to_bf16(stream, round);
  round.scales = reinterpret_cast<float*>(to + input_scales_offset(rows, task.weight.in));
  run_round_to_e4m3(stream, round);
}

void LinearBlas::prepare_weight(gpu::Stream& stream, const LinearTask& task, const BlasChoice& choice, uint32_t out) {
  const Matrix& weight = task.weight;
  if (choice.path == BlasPath::bf16_decoded) {
    run_decode_weight(stream, {.weight = weight,
                               .first_row = out,
                               .rows = std::min(choice.weight_rows_at_once, weight.out - out),
                               .to = workspace_});
  } else if (choice.path == BlasPath::fp8 && !has_padded_scales(weight)) {
    run_pad_scales(stream, {.from = scales_of_all(weight),
                            .to = reinterpret_cast<float*>(workspace_),
                            .blocks = static_cast<uint32_t>(ceil_div(weight.out, kBlasScaleBlock)),
                            .across = static_cast<uint32_t>(ceil_div(weight.in, kBlasScaleBlock)),
                            .padded = padded_blocks(weight.in)});
  }
}

bool LinearBlas::multiply(gpu::Stream& stream, const Part& part) {
  Plan& plan = this->plan(part);
  const gpu::cublaslt::MatmulWorkspace own{.memory = workspace_ + limits_.weight_bytes + limits_.input_bytes,
                                           .bytes = limits_.library_bytes};
  if (plan.matmul->run(part.places, own, stream.handle())) {
    plan.has_run = true;
    return true;
  }
  plan.matmul.reset();
  ++use_->refused_shapes;
  return false;
}

bool LinearBlas::run(gpu::Stream& stream, const LinearTask& task, const BlasChoice& choice, bool is_recording) {
  if (plans_.size() > kMostPlans && !is_recording) plans_.clear();
  const uint32_t outs = choice.weight_rows_at_once;
  // First all plans, so that a product which the library refuses costs nothing.
  for (uint32_t row = 0; row < choice.rows; row += choice.rows_at_once) {
    for (uint32_t out = 0; out < task.weight.out; out += outs) {
      const Part part = part_of(task, choice, row, out);
      if (is_recording && !plans_.contains(part.shape)) return false;
      const Plan& planned = plan(part);
      if (planned.matmul == nullptr || (is_recording && !planned.has_run)) return false;
    }
  }
  for (uint32_t row = 0; row < choice.rows; row += choice.rows_at_once) {
    round_inputs(stream, task, choice, row);
    for (uint32_t out = 0; out < task.weight.out; out += outs) {
      prepare_weight(stream, task, choice, out);
      if (!multiply(stream, part_of(task, choice, row, out))) return false;
    }
  }
  return true;
}

bool LinearBlas::run(gpu::Stream& stream, const LinearTask& task, bool is_recording) {
  BlasChoice choice = choose_linear_blas(task, precision_, card_, limits_);
  if (choice.path == BlasPath::none || !has_workspace(is_recording)) return false;
  bool is_done = run(stream, task, choice, is_recording);
  if (!is_done && choice.path == BlasPath::fp8) {
    choice = choose_linear_blas(task, precision_, BlasCard{}, limits_);
    is_done = choice.path != BlasPath::none && run(stream, task, choice, is_recording);
  }
  if (!is_done || choice.rows == task.rows) return is_done;
  LinearTask rest = task;
  rest.rows -= choice.rows;
  rest.x.data += choice.rows * task.x.stride;
  rest.y.data += choice.rows * task.y.stride;
  linear_tensor(stream, rest, precision_);
  return true;
}

}  // namespace dspack::kernels::cuda
