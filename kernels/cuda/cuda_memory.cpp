#include "kernels/cuda/cuda_memory.h"

#include <algorithm>
#include <string>
#include <vector>

#include "format/base/check.h"

namespace dspack::kernels::cuda {
namespace {

/// What kernels have to know of all experts' matrices of one kind; nullopt: they differ.
std::optional<MatrixForm> common_form(std::span<const ExpertMatrices> experts, const Weight ExpertMatrices::*which) {
  const auto form_of = [&](const ExpertMatrices& expert) {
    const Weight& weight = expert.*which;
    const bool is_scaled = !weight.scale.empty();
    return MatrixForm{.dtype = weight.dtype,
                      .out = weight.out,
                      .in = weight.in,
                      .block_out = is_scaled ? weight.block_out : 0,
                      .block_in = is_scaled ? weight.block_in : 0,
                      .starts_aligned = true};
  };
  constexpr uint64_t kPiece = 16;
  MatrixForm form = form_of(experts.front());
  for (const ExpertMatrices& expert : experts) {
    if (form_of(expert) != form_of(experts.front())) return std::nullopt;
    if (reinterpret_cast<uint64_t>(address_of((expert.*which).data)) % kPiece != 0) form.starts_aligned = false;
  }
  return form;
}

}  // namespace

Result<std::unique_ptr<CudaBuffer>> CudaBuffer::make(uint64_t bytes, std::shared_ptr<Budget> budget) {
  const uint64_t before = budget->used_bytes.fetch_add(bytes);
  const bool is_within =
      budget->limit_bytes == 0 || (before <= budget->limit_bytes && bytes <= budget->limit_bytes - before);
  auto memory = is_within ? gpu::allocate(bytes)
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

Matrix matrix_of(const Weight& weight) {
  Matrix matrix{.data = address_of(weight.data),
                .scale = reinterpret_cast<const float*>(address_of(weight.scale)),
                .out = weight.out,
                .in = weight.in};
  if (matrix.scale != nullptr) {
    matrix.block_out = weight.block_out;
    matrix.block_in = weight.block_in;
  }
  return matrix;
}

Result<std::unique_ptr<ExpertTable>> CudaExpertTable::make(std::span<const ExpertMatrices> experts,
                                                           std::shared_ptr<Budget> budget) {
  DSPACK_CHECK(!experts.empty(), "a table of no experts");
  const auto gate = common_form(experts, &ExpertMatrices::gate);
  const auto up = common_form(experts, &ExpertMatrices::up);
  const auto down = common_form(experts, &ExpertMatrices::down);
  if (!gate || !up || !down || *gate != *up) {
    return Error{ErrorKind::unsupported,
                 "the experts of a layer differ in shape or in how they are stored; the GPU runs layers of equal ones"};
  }
  std::vector<ExpertEntry> entries;
  entries.reserve(experts.size());
  for (const ExpertMatrices& expert : experts) {
    const auto scale = [](const Weight& weight) { return reinterpret_cast<const float*>(address_of(weight.scale)); };
    entries.push_back({.gate = address_of(expert.gate.data),
                       .gate_scale = scale(expert.gate),
                       .up = address_of(expert.up.data),
                       .up_scale = scale(expert.up),
                       .down = address_of(expert.down.data),
                       .down_scale = scale(expert.down)});
  }
  TRY_ASSIGN(auto memory, CudaBuffer::make(entries.size() * sizeof(ExpertEntry), std::move(budget)));
  const auto stream = gpu::make_stream();
  stream->copy_to_device(memory->address(), entries.data(), entries.size() * sizeof(ExpertEntry));
  stream->synchronize();
  return std::unique_ptr<ExpertTable>(
      new CudaExpertTable(std::move(memory), {.gate_up = *gate, .down = *down}, static_cast<uint32_t>(experts.size())));
}

}  // namespace dspack::kernels::cuda
