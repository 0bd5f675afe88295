#include "kernels/cuda/linear/linear_blas.h"

#include <algorithm>

#include "format/base/check.h"
#include "format/base/size.h"
#include "kernels/cuda/linear/linear.h"

namespace dspack::kernels::cuda {

using gpu::cublaslt::DataType;
using gpu::cublaslt::Matmul;

namespace {

// Sequences of every length have their own plans; a plan that is used again is used again soon.
constexpr size_t kMaxPlans = 4096;

const float* scales_of_all(const Matrix& weight) {
  return static_cast<const float*>(weight.planes[kScales]);
}

// linear_tensor reads the weights once per 64 rows: up to that it is memory-bound, and there is little to gain.
constexpr uint32_t kLeastRows = 65;
// Decoding costs about five bytes of memory traffic per weight (one read, two written, two read again): 1.5 ps at 3.35
// TB/s. That is the gain of 250 rows if linear_tensor runs at 230 TFLOP/s, which its instructions allow, and cuBLASLt
// at 750. Not yet measured. A run multiplies at most ModelOptions::wave_rows rows at once
// (tests/kernels/cuda/reach_test).
constexpr uint32_t kLeastRowsDecoded = 256;
constexpr uint32_t kRowUnit = 128;  // row multiple of parts: a tile of any of the library's kernels

constexpr size_t kFirstVersionWithBlockScaling = 120'900;
// cuBLAS documentation, "Scaling factors layouts" (M and N multiples of 4) and cublasLtMatmul (dimensions that support
// 16-byte alignment: 16 codes of FP8).
constexpr uint32_t kRowMultiple = 4;
constexpr uint32_t kF8Multiple = 16;

BlasPath path_for(const LinearTask& task, Precision precision, const BlasCard& card) {
  if (task.rows < kLeastRows || !has_whole_pieces(task.x) || !has_whole_pieces(task.y)) return BlasPath::none;
  const BlasPath path = blas_path_of(form_of(task.weight), precision, card);
  return path == BlasPath::bf16_decoded && task.rows < kLeastRowsDecoded ? BlasPath::none : path;
}

/// Size of nearly equal parts of `total`, none above `most`; 0: no part fits.
uint32_t part_of(uint32_t total, uint64_t most) {
  if (total <= most) return total;
  const uint32_t unit = most >= kRowUnit ? kRowUnit : kRowMultiple;
  const uint64_t whole = most / unit * unit;
  if (whole == 0) return 0;
  return static_cast<uint32_t>(std::min(whole, round_up(ceil_div(total, ceil_div(total, whole)), unit)));
}

}  // namespace

namespace {

/// Computes one product, of zeros.
void multiply_once(const gpu::cublaslt::Library& library, unsigned device, DataType type) {
  constexpr uint64_t kSide = kBlasScaleBlock;
  constexpr uint64_t kMatrixBytes = kSide * kSide * sizeof(float);  // for the widest type
  constexpr uint64_t kScaleBytes = kSide * sizeof(float);           // one per input row; the weight has four
  const uint64_t library_bytes = BlasLimits{}.library_bytes;
  constexpr uint64_t kBefore = 3 * kMatrixBytes + 2 * kScaleBytes;
  const auto memory = gpu::allocate(device, kBefore + library_bytes);
  if (!memory) return;
  auto* const begin = static_cast<std::byte*>(*memory);
  auto* const scales = reinterpret_cast<float*>(begin + 3 * kMatrixBytes);
  const bool is_scaled = type == DataType::f8_e4m3;
  const gpu::cublaslt::MatmulPlaces places{.a = begin,
                                           .b = begin + kMatrixBytes,
                                           .d = reinterpret_cast<float*>(begin + 2 * kMatrixBytes),
                                           .a_scale = is_scaled ? scales : nullptr,
                                           .b_scale = is_scaled ? scales + kSide : nullptr};
  {
    const auto stream = gpu::make_stream(device);
    stream->fill(begin, 0, kBefore);
    const auto matmul = Matmul::plan(
        library, {.type = type, .m = kSide, .n = kSide, .k = kSide, .lda = kSide, .ldb = kSide, .ldd = kSide}, places,
        library_bytes);
    if (matmul != nullptr)
      (void)matmul->run(places, {.memory = begin + kBefore, .bytes = library_bytes}, stream->handle());
    stream->synchronize();
  }
  gpu::release(*memory);
}

}  // namespace

void warm_linear_blas(const gpu::cublaslt::Library& library, Precision precision, const gpu::Properties& properties) {
  if (precision == Precision::exact) return;
  multiply_once(library, properties.index, DataType::bf16);
  const bool has_block_scaling = blas_card(properties, library.version()).has_block_scaling;
  if (precision == Precision::fp8 && has_block_scaling) multiply_once(library, properties.index, DataType::f8_e4m3);
}

BlasCard blas_card(const gpu::Properties& properties, size_t library_version) {
  // "Scaling Mode Support Overview": 9.0 only. Blackwell has other blocks, with scales that are powers of two.
  return {.has_block_scaling =
              properties.major == 9 && properties.minor == 0 && library_version >= kFirstVersionWithBlockScaling};
}

BlasPath blas_path_of(const MatrixForm& weight, Precision precision, const BlasCard& card) {
  const bool is_scaled = weight.block_out != 0;
  // 16-byte pieces are required by cuBLASLt's best kernels, and by the kernels that round and decode.
  if (precision == Precision::exact || !has_aligned_rows(weight)) return BlasPath::none;
  if (weight.coding == Coding::bf16 && !is_scaled) return BlasPath::bf16;
  // linear_tensor must be able to compute the remaining rows.
  const bool has_blocks = weight.coding == Coding::f8_e4m3 && is_scaled && weight.block_out == kBlasScaleBlock &&
                          weight.block_in == kBlasScaleBlock && weight.out % kF8Multiple == 0 &&
                          weight.in % kF8Multiple == 0 && fits_tensor_cores(weight);
  if (precision == Precision::fp8 && card.has_block_scaling && has_blocks) return BlasPath::fp8;
  const bool is_decoded = weight.coding == Coding::f8_e4m3 || weight.coding == Coding::bf16;
  return is_decoded ? BlasPath::bf16_decoded : BlasPath::none;
}

uint32_t blas_weight_rows(BlasPath path, const WeightForm& weight, const BlasLimits& limits) {
  if (path == BlasPath::bf16_decoded) return part_of(weight.out, limits.weight_bytes / (uint64_t{weight.in} * 2));
  const bool scales_fit = path != BlasPath::fp8 || padded_scale_bytes(weight.out, weight.in) <= limits.weight_bytes;
  return scales_fit ? weight.out : 0;
}

BlasChoice choose_linear_blas(const LinearTask& task, Precision precision, const BlasCard& card,
                              const BlasLimits& limits) {
  const Matrix& weight = task.weight;
  BlasChoice choice{.path = path_for(task, precision, card), .rows = task.rows};
  if (choice.path == BlasPath::none) return {};
  if (choice.path == BlasPath::fp8) choice.rows -= choice.rows % kRowMultiple;
  choice.rows_at_once = part_of(choice.rows, limits.input_bytes / blas_input_bytes(choice.path, 1, weight.in));
  choice.weight_rows_at_once = blas_weight_rows(choice.path, weight, limits);
  return choice.rows_at_once > 0 && choice.weight_rows_at_once > 0 ? choice : BlasChoice{};
}

/// One call of the library: some input rows times some rows of the weight.
struct LinearBlas::MatmulCall {
  gpu::cublaslt::MatmulShape shape;
  gpu::cublaslt::MatmulPlaces places;
};

LinearBlas::~LinearBlas() {
  if (workspace_ != nullptr) gpu::release(workspace_);
}

bool LinearBlas::has_workspace(bool is_recording) {
  if (workspace_ != nullptr) return true;
  if (is_recording || use_->has_no_memory) return false;
  auto memory = gpu::allocate(device_, limits_.total());
  use_->has_no_memory = !memory.has_value();
  if (memory) workspace_ = static_cast<std::byte*>(*memory);
  return memory.has_value();
}

std::vector<LinearBlas::Lane> LinearBlas::lanes(gpu::Stream& stream, size_t count) {
  const uint64_t weight_bytes = share_of(limits_.weight_bytes, count);
  const uint64_t own_bytes = share_of(limits_.library_bytes, count);
  while (beside_.size() + 1 < count)
    beside_.push_back(gpu::make_stream(device_));
  std::vector<Lane> lanes;
  for (size_t i = 0; i < count; ++i) {
    lanes.push_back({.stream = i == 0 ? &stream : beside_[i - 1].get(),
                     .weights = workspace_ + i * weight_bytes,
                     .own = workspace_ + limits_.weight_bytes + limits_.input_bytes + i * own_bytes,
                     .own_bytes = own_bytes});
  }
  return lanes;
}

void LinearBlas::fork(std::span<const Lane> lanes) {
  const auto begun = lanes.front().stream->mark();
  for (const Lane& lane : lanes.subspan(1))
    lane.stream->wait(*begun);
}

void LinearBlas::join(std::span<const Lane> lanes) {
  for (const Lane& lane : lanes.subspan(1))
    lanes.front().stream->wait(*lane.stream->mark());
}

LinearBlas::MatmulCall LinearBlas::part_of(const Lane& lane, const BlasProduct& product, uint32_t out) {
  const Matrix& weight = product.weight;
  const bool is_fp8 = product.path == BlasPath::fp8;
  const bool is_decoded = product.path == BlasPath::bf16_decoded;
  MatmulCall part{
      .shape = {.type = is_fp8 ? DataType::f8_e4m3 : DataType::bf16,
                .m = std::min(product.weight_rows_at_once, weight.out - out),
                .n = product.rows,
                .k = weight.in,
                .lda = weight.in,
                .ldb = weight.in,
                .ldd = product.y.stride},
      .places = {
          .a = is_decoded ? lane.weights : weight.planes[kCodes], .b = product.inputs, .d = product.y.data + out}};
  if (is_fp8) {
    part.places.a_scale =
        has_padded_scales(weight) ? scales_of_all(weight) : reinterpret_cast<const float*>(lane.weights);
    part.places.b_scale = product.input_scales;
  }
  return part;
}

LinearBlas::Plan& LinearBlas::plan(const Lane& lane, const MatmulCall& part) {
  const PlanKey key(part.shape, lane.own_bytes);
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  (void)lane.stream->handle();  // the library asks the thread's current device which kernels it has
  Plan made{.matmul = Matmul::plan(*use_->library, part.shape, part.places, lane.own_bytes)};
  if (made.matmul == nullptr) ++use_->refused_shapes;
  return plans_.emplace(key, std::move(made)).first->second;
}

void LinearBlas::drop_old_plans() {
  if (plans_.size() > kMaxPlans) plans_.clear();
}

bool LinearBlas::is_planned(const Lane& lane, const BlasProduct& product, bool is_recording) {
  for (uint32_t out = 0; out < product.weight.out; out += product.weight_rows_at_once) {
    const MatmulCall part = part_of(lane, product, out);
    if (is_recording && !plans_.contains({part.shape, lane.own_bytes})) return false;
    const Plan& planned = plan(lane, part);
    if (planned.matmul == nullptr || (is_recording && !planned.has_run)) return false;
  }
  return true;
}

void LinearBlas::prepare_weight(const Lane& lane, const BlasProduct& product, uint32_t out) {
  const Matrix& weight = product.weight;
  if (product.path == BlasPath::bf16_decoded) {
    run_decode_weight(*lane.stream, {.weight = weight,
                                     .first_row = out,
                                     .rows = std::min(product.weight_rows_at_once, weight.out - out),
                                     .to = lane.weights});
  } else if (product.path == BlasPath::fp8 && !has_padded_scales(weight)) {
    run_pad_scales(*lane.stream, {.from = scales_of_all(weight),
                                  .to = reinterpret_cast<float*>(lane.weights),
                                  .blocks = static_cast<uint32_t>(ceil_div(weight.out, kBlasScaleBlock)),
                                  .across = static_cast<uint32_t>(ceil_div(weight.in, kBlasScaleBlock)),
                                  .padded = padded_blocks(weight.in)});
  }
}

bool LinearBlas::multiply(const Lane& lane, const BlasProduct& product) {
  const gpu::cublaslt::MatmulWorkspace own{.memory = lane.own, .bytes = lane.own_bytes};
  for (uint32_t out = 0; out < product.weight.out; out += product.weight_rows_at_once) {
    prepare_weight(lane, product, out);
    const MatmulCall part = part_of(lane, product, out);
    Plan& plan = this->plan(lane, part);
    plan.has_run = plan.matmul != nullptr && plan.matmul->run(part.places, own, lane.stream->handle());
    if (plan.has_run) continue;
    if (plan.matmul != nullptr) ++use_->refused_shapes;
    plan.matmul.reset();
    return false;
  }
  return true;
}

/// The product of the rows from `row` on that are rounded at once.
BlasProduct LinearBlas::product_of(const LinearTask& task, const BlasChoice& choice, uint32_t row) const {
  const uint32_t rows = std::min(choice.rows_at_once, choice.rows - row);
  return {.weight = task.weight,
          .path = choice.path,
          .weight_rows_at_once = choice.weight_rows_at_once,
          .rows = rows,
          .inputs = inputs(),
          .input_scales = scales_behind(inputs(), rows, task.weight.in),
          .y = {.data = task.y.data + row * task.y.stride, .stride = task.y.stride}};
}

void LinearBlas::round_inputs(gpu::Stream& stream, BlasPath path, RoundInputsTask task, std::byte* to) {
  task.to = to;
  if (path != BlasPath::fp8) return run_round_to_bf16(stream, task);
  task.scales = scales_behind(to, task.rows, task.in);
  run_round_to_e4m3(stream, task);
}

bool LinearBlas::run(gpu::Stream& stream, const LinearTask& task, const BlasChoice& choice, bool is_recording) {
  if (!is_recording) drop_old_plans();
  const Lane lane = lanes(stream, 1).front();
  // Makes all plans first, so that a refused product costs nothing.
  for (uint32_t row = 0; row < choice.rows; row += choice.rows_at_once) {
    if (!is_planned(lane, product_of(task, choice, row), is_recording)) return false;
  }
  for (uint32_t row = 0; row < choice.rows; row += choice.rows_at_once) {
    const BlasProduct product = product_of(task, choice, row);
    round_inputs(stream, choice.path,
                 {.x = {.data = task.x.data + row * task.x.stride, .stride = task.x.stride},
                  .rows = product.rows,
                  .in = task.weight.in},
                 inputs());
    if (!multiply(lane, product)) return false;
  }
  return true;
}

/// Computes the rows from `first` on by linear_tensor, reusing the workspace after the library's products.
void LinearBlas::run_rest(gpu::Stream& stream, const LinearTask& task, uint32_t first) {
  const uint32_t rows = task.rows - first;
  const uint32_t in = task.weight.in;
  DSPACK_CHECK(rounded_bytes(rows, in) <= limits_.total(), "a workspace without room for four rows");
  const RoundedRows x = lay_out_rounded(workspace_, rows, in, input_rounding(task.weight.coding, precision_));
  run_round_rows(
      stream,
      {.x = {.data = task.x.data + first * task.x.stride, .stride = task.x.stride}, .rows = rows, .in = in, .to = x});
  linear_tensor(stream, {.weight = task.weight,
                         .x = x,
                         .y = {.data = task.y.data + first * task.y.stride, .stride = task.y.stride},
                         .rows = rows});
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
  run_rest(stream, task, choice.rows);
  return true;
}

}  // namespace dspack::kernels::cuda
