#include "kernels/cuda/cublaslt_matmul.h"

#include "format/base/check.h"

namespace dspack::gpu::cublaslt {
namespace {

/// What to say of a status that leaves nothing to go on with.
void check(Status status, const char* what) {
  DSPACK_CHECK(status == Status::success,
               std::string("cuBLASLt: ") + what + ": status " + std::to_string(static_cast<int>(status)));
}

/// Success, or a product that the library does not do.
bool is_done(Status status, const char* what) {
  if (status == Status::not_supported || status == Status::invalid_value || status == Status::arch_mismatch)
    return false;
  check(status, what);
  return true;
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
  (void)functions_.destroy(handle_);  // at the end of the process the driver may have gone first
}

std::string Library::version_words() const {
  const size_t number = version();
  return std::to_string(number / 10'000) + "." + std::to_string(number / 100 % 100) + "." +
         std::to_string(number % 100);
}

Matmul::Matmul(const Library& library, const MatmulShape& shape) : library_(library), shape_(shape) {
  const Functions& with = library_.functions();
  check(with.matmul_desc_create(&desc_, ComputeType::f32, DataType::f32), "descriptor of a product");
  const auto layout = [&](MatrixLayout& to, DataType type, uint64_t rows, uint64_t cols, uint64_t apart) {
    check(with.layout_create(&to, type, rows, cols, static_cast<int64_t>(apart)), "layout of a matrix");
  };
  layout(a_, shape.type, shape.k, shape.m, shape.lda);
  layout(b_, shape.type, shape.k, shape.n, shape.ldb);
  layout(d_, DataType::f32, shape.m, shape.n, shape.ldd);
}

Matmul::~Matmul() {
  const Functions& with = library_.functions();
  for (MatrixLayout layout : {a_, b_, d_})
    (void)with.layout_destroy(layout);
  (void)with.matmul_desc_destroy(desc_);
}

bool Matmul::describe() {
  const Functions& with = library_.functions();
  if (!set(with, desc_, MatmulAttribute::transpose_a, Operation::transpose)) return false;
  if (!set(with, desc_, MatmulAttribute::transpose_b, Operation::none)) return false;
  // A scale or its mode on a product of BF16 would be an error.
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
  check(with.preference_create(&preference), "preferences");
  check(with.preference_set(preference, PreferenceAttribute::max_workspace_bytes, &workspace_bytes,
                            sizeof workspace_bytes),
        "a preference");
  // An algorithm must do for every call of this shape, wherever its matrices lie.
  constexpr uint32_t kAlignment = 16;
  for (const auto matrix : {PreferenceAttribute::min_alignment_a, PreferenceAttribute::min_alignment_b,
                            PreferenceAttribute::min_alignment_c, PreferenceAttribute::min_alignment_d})
    check(with.preference_set(preference, matrix, &kAlignment, sizeof kAlignment), "a preference");
  HeuristicResult result;
  int32_t found = 0;
  const Status status = with.get_heuristic(library_.handle(), desc_, a_, b_, d_, d_, preference, 1, &result, &found);
  (void)with.preference_destroy(preference);
  if (!is_done(status, "heuristic") || found == 0 || result.state != Status::success) return false;
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
