#include "tests/support/emulated_gpu/emulated_cublaslt.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "format/base/check.h"
#include "format/base/size.h"
#include "format/dtype.h"
#include "tests/support/emulated_gpu/emulator.h"

namespace dspack::gpu::cublaslt {

// What the library's opaque types are here.
struct Context {};
struct MatmulDescription {
  Operation transpose_a = Operation::none, transpose_b = Operation::none;
  ScaleMode a_mode = ScaleMode::scalar, b_mode = ScaleMode::scalar;
  const float* a_scale = nullptr;
  const float* b_scale = nullptr;
};
struct MatrixLayoutDescription {
  DataType type;
  uint64_t rows, cols, apart;
};
struct PreferenceDescription {
  uint64_t workspace_bytes = 0;
  uint32_t alignments[4] = {256, 256, 256, 256};
};

namespace {

constexpr size_t kFirstWithBlockScaling = 120'900;
constexpr size_t kNewest = 130'100;
constexpr uint64_t kWorkspaceBytes = 1 << 20;  // that every algorithm here asks for
constexpr uint64_t kBlock = 128;

struct State {
  CublasLtSettings settings;
  CublasLtCounts counts;
  std::map<DataType, void*> code;  // by type, in the GPU's memory
};
State& state() {
  static State the_state;
  return the_state;
}

bool has_code(DataType type) {
  if (state().settings.code_bytes == 0 || state().code.contains(type)) return true;
  const auto memory = allocate(opened_device(), state().settings.code_bytes);
  if (memory) state().code.emplace(type, *memory);
  return memory.has_value();
}

template <class Described>
Status keep(Described** to, const Described& made) {
  *to = new Described(made);
  ++state().counts.descriptors;
  return Status::success;
}
template <class Described>
Status drop(Described* gone) {
  DSPACK_CHECK(gone != nullptr, "cuBLASLt: a descriptor that is not there");
  --state().counts.descriptors;
  delete gone;
  return Status::success;
}

template <class Value>
Status take(Value& to, const void* from, size_t bytes) {
  if (from == nullptr || bytes != sizeof to) return Status::invalid_value;
  std::memcpy(&to, from, sizeof to);
  return Status::success;
}

Status set_matmul(MatmulDesc desc, MatmulAttribute attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case MatmulAttribute::transpose_a: return take(desc->transpose_a, value, bytes);
    case MatmulAttribute::transpose_b: return take(desc->transpose_b, value, bytes);
    case MatmulAttribute::a_scale_mode: return take(desc->a_mode, value, bytes);
    case MatmulAttribute::b_scale_mode: return take(desc->b_mode, value, bytes);
    case MatmulAttribute::a_scale_pointer: return take(desc->a_scale, value, bytes);
    case MatmulAttribute::b_scale_pointer: return take(desc->b_scale, value, bytes);
  }
  return Status::invalid_value;
}

Status set_preference(Preference preference, PreferenceAttribute attribute, const void* value, size_t bytes) {
  if (attribute == PreferenceAttribute::max_workspace_bytes) return take(preference->workspace_bytes, value, bytes);
  const int matrix = static_cast<int>(attribute) - static_cast<int>(PreferenceAttribute::min_alignment_a);
  DSPACK_CHECK(matrix >= 0 && matrix < 4, "cuBLASLt: a preference of no matrix");
  return take(preference->alignments[matrix], value, bytes);
}

/// What the documentation says of a product in FP8.
bool f8_is_supported(const MatmulDescription& desc, const MatrixLayoutDescription& a, const MatrixLayoutDescription& b,
                     const MatrixLayoutDescription& d) {
  const auto card = open_device(opened_device());
  const bool right_card = card && card->major == 9 && card->minor == 0;
  const bool right_modes = desc.a_mode == ScaleMode::blk128x128 && desc.b_mode == ScaleMode::vec128;
  const bool right_sizes = a.rows % 16 == 0 && a.apart % 16 == 0 && b.apart % 16 == 0 && d.apart % 4 == 0 &&
                           d.rows % 4 == 0 && d.cols % 4 == 0;
  const bool right_scales = desc.a_scale != nullptr && desc.b_scale != nullptr;
  return right_card && right_modes && right_sizes && right_scales && state().settings.version >= kFirstWithBlockScaling;
}

bool has_scales(const MatmulDescription& desc) {
  return desc.a_mode != ScaleMode::scalar || desc.b_mode != ScaleMode::scalar || desc.a_scale != nullptr ||
         desc.b_scale != nullptr;
}

/// An algorithm is the shape that it is for.
Algorithm algorithm_for(const MatrixLayoutDescription& a, const MatrixLayoutDescription& b,
                        const MatrixLayoutDescription& d) {
  return {{static_cast<uint64_t>(a.type), a.rows, a.cols, a.apart, b.cols, b.apart, d.apart, 0xb1a5}};
}

Status get_heuristic(Handle /*handle*/, MatmulDesc desc, MatrixLayout a, MatrixLayout b, MatrixLayout c, MatrixLayout d,
                     Preference preference, int32_t asked, HeuristicResult* results, int32_t* found) {
  ++state().counts.heuristics;
  *found = 0;
  DSPACK_CHECK(asked == 1 && c == d, "cuBLASLt: one algorithm, and C is D");
  DSPACK_CHECK(desc->transpose_a == Operation::transpose && desc->transpose_b == Operation::none,
               "cuBLASLt: not the TN format");
  DSPACK_CHECK(a->rows == b->rows && a->cols == d->rows && b->cols == d->cols, "cuBLASLt: matrices that do not fit");
  DSPACK_CHECK(a->apart >= a->rows && b->apart >= b->rows && d->apart >= d->rows, "cuBLASLt: columns overlap");
  DSPACK_CHECK(a->type == b->type && d->type == DataType::f32, "cuBLASLt: types that do not fit");
  for (const uint32_t alignment : preference->alignments)
    DSPACK_CHECK(alignment <= 16, "cuBLASLt: an algorithm that wants more than every call of the shape has");
  if (a->type == DataType::bf16 && has_scales(*desc)) return Status::invalid_value;
  if (a->type == DataType::f8_e4m3 && !f8_is_supported(*desc, *a, *b, *d)) return Status::not_supported;
  const auto& refuses = state().settings.refuses;
  if (refuses && refuses(a->type, d->rows, d->cols, a->rows)) return Status::not_supported;
  if (preference->workspace_bytes < kWorkspaceBytes) return Status::not_supported;
  results[0] = {.algorithm = algorithm_for(*a, *b, *d), .workspace_bytes = kWorkspaceBytes, .state = Status::success};
  *found = 1;
  return Status::success;
}

void check_place(const void* place, uint64_t bytes, uint64_t alignment, const char* what) {
  DSPACK_CHECK(reinterpret_cast<uint64_t>(place) % alignment == 0, std::string("cuBLASLt: at an odd place: ") + what);
  DSPACK_CHECK(is_device_memory(place, bytes), std::string("cuBLASLt: not in the GPU's memory: ") + what);
}

uint64_t bytes_of(const MatrixLayoutDescription& matrix) {
  const uint64_t element = matrix.type == DataType::f32 ? 4 : matrix.type == DataType::bf16 ? 2 : 1;
  return ((matrix.cols - 1) * matrix.apart + matrix.rows) * element;
}

/// One product as it was when it was enqueued.
struct Product {
  MatmulDescription desc;
  MatrixLayoutDescription a, b, d;
  const void* a_data;
  const void* b_data;
  float* d_data;

  [[nodiscard]] uint64_t blocks() const { return ceil_div(a.rows, kBlock); }
  [[nodiscard]] uint64_t padded_blocks() const { return round_up(blocks(), 4); }

  void check_places() const {
    check_place(a_data, bytes_of(a), 16, "A");
    check_place(b_data, bytes_of(b), 16, "B");
    check_place(d_data, bytes_of(d), 16, "D");
    if (a.type != DataType::f8_e4m3) return;
    check_place(desc.a_scale, ceil_div(a.cols, kBlock) * padded_blocks() * sizeof(float), 16, "scales of A");
    check_place(desc.b_scale, b.cols * blocks() * sizeof(float), 16, "scales of B");
  }

  static double value(const MatrixLayoutDescription& matrix, const void* data, uint64_t row, uint64_t col) {
    const uint64_t at = col * matrix.apart + row;
    if (matrix.type == DataType::bf16) return static_cast<double>(bf16_to_f32(static_cast<const uint16_t*>(data)[at]));
    return static_cast<double>(f8_e4m3_to_f32(static_cast<const uint8_t*>(data)[at]));
  }
  static std::vector<double> values(const MatrixLayoutDescription& matrix, const void* data) {
    std::vector<double> all(matrix.rows * matrix.cols);
    for (uint64_t col = 0; col < matrix.cols; ++col) {
      for (uint64_t row = 0; row < matrix.rows; ++row)
        all[col * matrix.rows + row] = value(matrix, data, row, col);
    }
    return all;
  }

  void compute() const {
    const std::vector<double> left = values(a, a_data);
    const std::vector<double> right = values(b, b_data);
    const uint64_t k = a.rows;
    const bool is_scaled = a.type == DataType::f8_e4m3;
    for (uint64_t n = 0; n < b.cols; ++n) {
      for (uint64_t m = 0; m < a.cols; ++m) {
        double total = 0;
        for (uint64_t block = 0; block < blocks(); ++block) {
          double sum = 0;
          for (uint64_t i = block * kBlock; i < std::min(k, (block + 1) * kBlock); ++i)
            sum += left[m * k + i] * right[n * k + i];
          if (is_scaled) {
            sum *= static_cast<double>(desc.a_scale[m / kBlock * padded_blocks() + block]) *
                   static_cast<double>(desc.b_scale[block * b.cols + n]);
          }
          total += sum;
        }
        d_data[n * d.apart + m] = static_cast<float>(total);
      }
    }
  }
};

Status matmul(Handle /*handle*/, MatmulDesc desc, const void* alpha, const void* a, MatrixLayout a_layout,
              const void* b, MatrixLayout b_layout, const void* beta, const void* c, MatrixLayout c_layout, void* d,
              MatrixLayout d_layout, const Algorithm* algorithm, void* workspace, size_t workspace_bytes,
              void* stream) {
  DSPACK_CHECK(*static_cast<const float*>(alpha) == 1.0F && *static_cast<const float*>(beta) == 0.0F,
               "cuBLASLt: another sum than a product");
  DSPACK_CHECK(c == d && c_layout == d_layout, "cuBLASLt: C is D");
  const Algorithm wanted = algorithm_for(*a_layout, *b_layout, *d_layout);
  DSPACK_CHECK(std::memcmp(&wanted, algorithm, sizeof wanted) == 0, "cuBLASLt: the algorithm of another shape");
  DSPACK_CHECK(workspace_bytes >= kWorkspaceBytes, "cuBLASLt: too small a workspace");
  check_place(workspace, workspace_bytes, 256, "workspace");
  if (const Status status = state().settings.run_status; status != Status::success) return status;
  const Product product{.desc = *desc,
                        .a = *a_layout,
                        .b = *b_layout,
                        .d = *d_layout,
                        .a_data = a,
                        .b_data = b,
                        .d_data = static_cast<float*>(d)};
  product.check_places();
  if (!has_code(a_layout->type)) return Status::alloc_failed;
  ++(a_layout->type == DataType::bf16 ? state().counts.bf16_products : state().counts.f8_products);
  // The workspace is whose turn it is: what lay there is gone.
  enqueue_on(stream, [product, workspace] {
    std::memset(workspace, 0xff, kWorkspaceBytes);
    product.compute();
  });
  return Status::success;
}

constexpr Functions kFunctions = {
    .get_version = [] { return state().settings.version; },
    .create =
        [](Handle* to) {
          if (!state().settings.starts) return Status::not_initialized;
          return keep(to, Context{});
        },
    .destroy = [](Handle gone) { return drop(gone); },
    .matmul_desc_create = [](MatmulDesc* to, ComputeType /*type*/,
                             DataType /*of_scales*/) { return keep(to, MatmulDescription{}); },
    .matmul_desc_destroy = [](MatmulDesc gone) { return drop(gone); },
    .matmul_desc_set = set_matmul,
    .layout_create =
        [](MatrixLayout* to, DataType type, uint64_t rows, uint64_t cols, int64_t apart) {
          DSPACK_CHECK(rows > 0 && cols > 0 && apart > 0, "cuBLASLt: an empty matrix");
          return keep(to, MatrixLayoutDescription{type, rows, cols, static_cast<uint64_t>(apart)});
        },
    .layout_destroy = [](MatrixLayout gone) { return drop(gone); },
    .preference_create = [](Preference* to) { return keep(to, PreferenceDescription{}); },
    .preference_destroy = [](Preference gone) { return drop(gone); },
    .preference_set = set_preference,
    .get_heuristic = get_heuristic,
    .matmul = matmul,
};

}  // namespace

Result<std::unique_ptr<Library>> open_library(const std::string& file) {
  if (!file.empty() && file != kEmulatedCublasLt) return Error{ErrorKind::not_found, "there is no cuBLASLt " + file};
  if (file.empty() && state().settings.version == 0)
    return Error{ErrorKind::not_found, "the emulated GPU has none that is not named"};
  if (state().settings.version == 0) state().settings.version = kNewest;
  return Library::start(kFunctions, kEmulatedCublasLt);
}

}  // namespace dspack::gpu::cublaslt

namespace dspack::gpu {

void configure_cublaslt(const CublasLtSettings& settings) {
  const int64_t descriptors = cublaslt::state().counts.descriptors;
  for (const auto& [type, memory] : std::exchange(cublaslt::state().code, {}))
    release(memory);
  cublaslt::state().settings = settings;
  cublaslt::state().counts = {.descriptors = descriptors};
}

CublasLtCounts cublaslt_counts() {
  return cublaslt::state().counts;
}

}  // namespace dspack::gpu
