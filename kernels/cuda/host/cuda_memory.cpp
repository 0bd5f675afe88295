#include "kernels/cuda/host/cuda_memory.h"

#include <algorithm>
#include <string>
#include <vector>

#include "format/base/check.h"

namespace dspack::kernels::cuda {
namespace {

/// The common form of one matrix of all experts; nullopt if they differ.
std::optional<MatrixForm> common_form(std::span<const ExpertMatrices> experts, const Weight ExpertMatrices::*which) {
  const auto form_of_matrix = [&](const ExpertMatrices& expert) { return form_of(matrix_of(expert.*which)); };
  MatrixForm common = form_of_matrix(experts.front());
  for (const ExpertMatrices& expert : experts) {
    const MatrixForm form = form_of_matrix(expert);
    common.starts_aligned = common.starts_aligned && form.starts_aligned;
    if (static_cast<const WeightForm&>(form) != common) return std::nullopt;
  }
  return common;
}

}  // namespace

Result<std::unique_ptr<CudaBuffer>> CudaBuffer::make(uint64_t bytes, std::shared_ptr<Budget> budget) {
  const uint64_t before = budget->used_bytes.fetch_add(bytes);
  const bool is_within =
      budget->limit_bytes == 0 || (before <= budget->limit_bytes && bytes <= budget->limit_bytes - before);
  auto memory = is_within ? gpu::allocate(budget->device, bytes)
                          : Error{ErrorKind::budget, "cannot allocate " + std::to_string(bytes) +
                                                         " bytes of GPU memory: --vram allows " +
                                                         std::to_string(budget->limit_bytes) + ", of which " +
                                                         std::to_string(before) + " are in use"};
  if (!memory) {
    budget->used_bytes -= bytes;
    return memory.error();
  }
  return std::unique_ptr<CudaBuffer>(new CudaBuffer(static_cast<std::byte*>(*memory), bytes, std::move(budget)));
}

CudaBuffer::~CudaBuffer() {
  gpu::release(memory_);
  budget_->used_bytes -= bytes_;
}

Result<std::unique_ptr<Buffer>> PinnedBuffer::make(uint64_t bytes) {
  TRY_ASSIGN(void* const memory, gpu::allocate_pinned(bytes));
  return std::unique_ptr<Buffer>(new PinnedBuffer(memory, bytes));
}

std::byte* address_of(Slice place) {
  if (place.empty()) return nullptr;
  DSPACK_CHECK(place.buffer->host().empty(), "a buffer of another device");
  return static_cast<const CudaBuffer*>(place.buffer)->address() + place.offset_bytes;
}

bool is_pinned(Slice place) {
  return dynamic_cast<PinnedBuffer*>(place.buffer) != nullptr;
}

std::byte* visible_address(Slice place) {
  return is_pinned(place) ? place.buffer->host().data() + place.offset_bytes : address_of(place);
}

Matrix matrix_of(const Weight& weight) {
  DSPACK_CHECK(weight.planes[kCodes].offset_bytes % std::max(1U, facts_of(weight.coding).bits / 8) == 0,
               "weight is not aligned to its elements");
  Matrix matrix{weight};
  for (size_t plane = 0; plane < kPlanes; ++plane)
    matrix.planes[plane] = address_of(weight.planes[plane]);
  return matrix;
}

Result<std::unique_ptr<ExpertTable>> CudaExpertTable::make(std::span<const ExpertMatrices> experts,
                                                           std::shared_ptr<Budget> budget) {
  DSPACK_CHECK(!experts.empty(), "a table of no experts");
  const auto gate = common_form(experts, &ExpertMatrices::gate);
  const auto up = common_form(experts, &ExpertMatrices::up);
  const auto down = common_form(experts, &ExpertMatrices::down);
  const float limit = experts.front().limit;
  const bool are_limited_alike =
      std::ranges::all_of(experts, [&](const ExpertMatrices& expert) { return expert.limit == limit; });
  DSPACK_CHECK(are_limited_alike, "experts of one layer have different limits");
  if (!gate || !up || !down || *gate != *up) {
    return Error{ErrorKind::unsupported,
                 "the experts of a layer differ in shape or in how they are stored; the GPU runs layers of equal ones"};
  }
  std::vector<ExpertEntry> entries;
  entries.reserve(experts.size());
  for (const ExpertMatrices& expert : experts) {
    ExpertEntry& entry = entries.emplace_back();
    for (size_t plane = 0; plane < kPlanes; ++plane) {
      entry.gate[plane] = address_of(expert.gate.planes[plane]);
      entry.up[plane] = address_of(expert.up.planes[plane]);
      entry.down[plane] = address_of(expert.down.planes[plane]);
    }
  }
  const auto stream = gpu::make_stream(budget->device);
  TRY_ASSIGN(auto memory, CudaBuffer::make(entries.size() * sizeof(ExpertEntry), std::move(budget)));
  stream->copy_to_device(memory->address(), entries.data(), entries.size() * sizeof(ExpertEntry));
  stream->synchronize();
  return std::unique_ptr<ExpertTable>(
      new CudaExpertTable(std::move(memory), {.gate_up = *gate, .down = *down, .limit = limit}, std::move(entries)));
}

}  // namespace dspack::kernels::cuda
