#include "kernels/cuda/linear/cublaslt.h"

#include "kernels/cuda/hardware/runtime.h"

namespace dspack::gpu::cublaslt {
namespace {

/// True on success. False if the library refuses a product: one that it does not support, or lacks memory for (it loads
/// kernels on first use, possibly when the card is full). Any other status is recorded as a failure of the device.
bool is_done(Status status, const char* what) {
  if (status == Status::success) return true;
  const bool is_refusal = status == Status::not_supported || status == Status::invalid_value ||
                          status == Status::arch_mismatch || status == Status::alloc_failed ||
                          status == Status::internal_error;
  if (!is_refusal) {
    fail({ErrorKind::io, std::string("the GPU has failed in cuBLASLt: ") + what + ": status " +
                             std::to_string(static_cast<int>(status))});
  }
  return false;
}

template <class Value>
bool set(const Functions& functions, MatmulDesc desc, MatmulAttribute attribute, const Value& value) {
  return is_done(functions.matmul_desc_set(desc, attribute, &value, sizeof value), "an attribute of a product");
}

}  // namespace

Result<std::unique_ptr<Library>> Library::start(const Functions& functions, const std::string& name) {
  Handle handle = nullptr;
  if (const Status status = functions.create(&handle); status != Status::success) {
    return Error{ErrorKind::unsupported, name + " does not start: status " + std::to_string(static_cast<int>(status))};
  }
  return std::unique_ptr<Library>(new Library(functions, handle));
}

Library::~Library() {
  (void)functions_.destroy(handle_);  // at process exit the driver may already be gone
}

std::string Library::version_words() const {
  const size_t number = version();
  return std::to_string(number / 10'000) + "." + std::to_string(number / 100 % 100) + "." +
         std::to_string(number % 100);
}

Matmul::~Matmul() {
  const Functions& with = library_.functions();
  for (MatrixLayout layout : {a_, b_, d_}) {
    if (layout != nullptr) (void)with.layout_destroy(layout);
  }
  if (desc_ != nullptr) (void)with.matmul_desc_destroy(desc_);
}

bool Matmul::describe() {
  const Functions& with = library_.functions();
  const auto layout = [&](MatrixLayout& to, DataType type, uint64_t rows, uint64_t cols, uint64_t apart) {
    return is_done(with.layout_create(&to, type, rows, cols, static_cast<int64_t>(apart)), "the layout of a matrix");
  };
  if (!is_done(with.matmul_desc_create(&desc_, ComputeType::f32, DataType::f32), "the descriptor of a product") ||
      !layout(a_, shape_.type, shape_.k, shape_.m, shape_.lda) ||
      !layout(b_, shape_.type, shape_.k, shape_.n, shape_.ldb) ||
      !layout(d_, DataType::f32, shape_.m, shape_.n, shape_.ldd)) {
    return false;
  }
  if (!set(with, desc_, MatmulAttribute::transpose_a, Operation::transpose)) return false;
  if (!set(with, desc_, MatmulAttribute::transpose_b, Operation::none)) return false;
  // Setting a scale or scale mode on a BF16 product would be an error.
  if (shape_.type != DataType::f8_e4m3) return true;
  return set(with, desc_, MatmulAttribute::a_scale_mode, ScaleMode::blk128x128) &&
         set(with, desc_, MatmulAttribute::b_scale_mode, ScaleMode::vec128);
}

bool Matmul::set_scales(const MatmulPlaces& places) {
  if (shape_.type != DataType::f8_e4m3) return true;
  const Functions& with = library_.functions();
  return set(with, desc_, MatmulAttribute::a_scale_pointer, places.a_scale) &&
         set(with, desc_, MatmulAttribute::b_scale_pointer, places.b_scale);
}

bool Matmul::find_algorithm(uint64_t workspace_bytes) {
  const Functions& with = library_.functions();
  Preference preference = nullptr;
  if (!is_done(with.preference_create(&preference), "preferences")) return false;
  const auto prefer = [&](PreferenceAttribute attribute, const auto& value) {
    return is_done(with.preference_set(preference, attribute, &value, sizeof value), "a preference");
  };
  bool is_set = prefer(PreferenceAttribute::max_workspace_bytes, workspace_bytes);
  // The algorithm must work for every call of this shape, wherever its matrices are.
  constexpr uint32_t kAlignment = 16;
  for (const auto matrix : {PreferenceAttribute::min_alignment_a, PreferenceAttribute::min_alignment_b,
                            PreferenceAttribute::min_alignment_c, PreferenceAttribute::min_alignment_d})
    is_set = is_set && prefer(matrix, kAlignment);
  HeuristicResult result;
  int32_t found = 0;
  const bool has_answer =
      is_set && is_done(with.get_heuristic(library_.handle(), desc_, a_, b_, d_, d_, preference, 1, &result, &found),
                        "heuristic");
  (void)with.preference_destroy(preference);
  if (!has_answer || found == 0 || result.state != Status::success) return false;
  algorithm_ = result.algorithm;
  return true;
}

std::unique_ptr<Matmul> Matmul::plan(const Library& library, const MatmulShape& shape, const MatmulPlaces& places,
                                     uint64_t workspace_bytes) {
  std::unique_ptr<Matmul> made(new Matmul(library, shape));
  if (!made->describe() || !made->set_scales(places) || !made->find_algorithm(workspace_bytes)) return nullptr;
  return made;
}

bool Matmul::run(const MatmulPlaces& places, const MatmulWorkspace& workspace, void* stream) {
  if (!set_scales(places)) return false;
  constexpr float kAlpha = 1, kBeta = 0;
  return is_done(
      library_.functions().matmul(library_.handle(), desc_, &kAlpha, places.a, a_, places.b, b_, &kBeta, places.d, d_,
                                  places.d, d_, &algorithm_, workspace.memory, workspace.bytes, stream),
      "a product");
}

}  // namespace dspack::gpu::cublaslt
