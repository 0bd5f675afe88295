// Collects the tensors that one piece of the model needs (a layer, an expert), then loads them into one device buffer.
// Its size is known before anything is read.
// Threads: single-thread. Lifetime: borrows the checkpoint, and until `load` the places given to `add_*`; what is
// loaded borrows the returned buffer. Errors: those of finding (format/weights) and reading (checkpoint_files.h);
// budget (memory).
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "format/progress.h"
#include "format/weights/weight_format.h"
#include "kernels/ops.h"
#include "runtime/access/checkpoint_access.h"

namespace dspack::runtime {

/// A linear layer's weight, whatever its stored form (format/weights/weight_format.h).
/// Borrows the device buffer that holds its bytes.
class Linear {
 public:
  Linear() = default;
  explicit Linear(const kernels::Weight& weight) : weight_(weight) {}

  [[nodiscard]] bool empty() const { return weight_.planes[kernels::kCodes].empty(); }
  [[nodiscard]] const kernels::Weight& weight() const { return weight_; }
  /// y[r] = weight . x[r]. x [rows, in], y [rows, out].
  void apply(kernels::Queue& queue, const kernels::Rows& x, const kernels::Rows& y) const {
    queue.linear(weight_, x, y);
  }

 private:
  kernels::Weight weight_;
};

/// Least work of multiplying one row of x by each of some matrices.
struct WeightWork {
  uint64_t bytes = 0;            // weights read, scales included
  uint64_t multiplications = 0;  // each with one addition
  WeightWork& operator+=(const WeightWork& more) {
    bytes += more.bytes;
    multiplications += more.multiplications;
    return *this;
  }
};

/// Inputs of loading, besides the tensors' names.
struct LoadContext {
  kernels::Device& device;
  kernels::Queue& queue;
  CheckpointAccess& access;
  format::Quantization quantization;
  /// Map weights from the page cache, if they are used as they are stored, instead of copying them (ReadFile::map).
  /// Precondition: a CPU device.
  bool in_place = false;
  /// Receives layers and their bytes as they are loaded; may be null.
  format::Progress* progress = nullptr;
};

/// Call add_*() for every tensor, then either load(), or, to read by other means: allocate size_bytes() bytes, fill
/// parts() and bind().
class WeightGroup {
 public:
  explicit WeightGroup(const LoadContext& context) : context_(context) {}

  /// `*into` becomes the weight `name` [out, in] when the group is loaded.
  [[nodiscard]] Result<void> add_linear(Linear* into, std::string_view name, uint32_t out, uint32_t in);
  /// `*into` becomes the values of the tensor `name` [length], as FP32.
  [[nodiscard]] Result<void> add_vector(kernels::Slice* into, std::string_view name, uint32_t length);
  /// The same for a tensor [rows, cols].
  [[nodiscard]] Result<void> add_table(kernels::Slice* into, std::string_view name, uint32_t rows, uint32_t cols);

  /// Device memory that `load` takes.
  [[nodiscard]] uint64_t size_bytes() const { return size_bytes_; }
  /// Work of everything that was added; `bytes` includes vectors and tables.
  [[nodiscard]] WeightWork work() const;
  /// Every tensor of the group, scales included.
  [[nodiscard]] std::vector<const format::TensorEntry*> tensors() const;

  /// Allocates a buffer, reads everything that was added into it, and binds it.
  [[nodiscard]] Result<std::unique_ptr<kernels::Buffer>> load(WeightPurpose purpose, const std::stop_token& stop);

  struct PlacedPlane {
    format::StoredPlane plane;
    uint64_t offset = 0;  // in the buffer
  };
  /// For reading by other means: each plane and its place in a buffer of size_bytes().
  [[nodiscard]] const std::vector<PlacedPlane>& parts() const { return parts_; }
  /// Points everything that was added into `buffer`, whose bytes may come later.
  void bind(kernels::Buffer& buffer);

 private:
  struct LinearTarget {
    Linear* into = nullptr;
    kernels::WeightForm form;
    std::array<std::optional<uint64_t>, kernels::kPlanes> planes;  // offsets in the buffer
  };
  struct VectorTarget {
    kernels::Slice* into = nullptr;
    uint64_t data = 0;
  };

  Result<void> add_values(kernels::Slice* into, std::string_view name, const std::vector<uint64_t>& shape);
  uint64_t place(const format::StoredPlane& plane);
  [[nodiscard]] bool is_mapped(const format::StoredPlane& plane) const;
  struct Staging {
    std::vector<std::vector<std::byte>> stored;  // bytes of each tensor of a plane that is converted or checked
    std::vector<std::byte> made;
  };
  Result<void> read_part(const PlacedPlane& part, kernels::Slice to, Staging& staging, WeightPurpose purpose,
                         const std::stop_token& stop);

  /// Brings a plane's elements to where they are used, unchanged.
  Result<void> read_elements(const format::StoredPlane& plane, kernels::Slice to, Staging& staging,
                             WeightPurpose purpose, const std::stop_token& stop);

  LoadContext context_;
  std::vector<PlacedPlane> parts_;
  std::vector<LinearTarget> linears_;
  std::vector<VectorTarget> vectors_;
  uint64_t size_bytes_ = 0;
};

}  // namespace dspack::runtime
