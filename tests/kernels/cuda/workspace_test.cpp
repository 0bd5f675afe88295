// What a queue takes of the GPU's memory for itself is what was planned.
#include "kernels/cuda/cuda_queue.h"

#include <doctest/doctest.h>

#include <array>

#include "kernels/cuda/cuda_device.h"
#include "tests/support/emulated_gpu/emulator.h"

namespace dspack::test::workspace_test {
namespace {

using kernels::WorkspaceShape;

constexpr WorkspaceShape kLargest{.rows = 6, .heads = 2, .latent_dim = 16, .rope_dim = 16, .positions = 200};

/// Attention in calls of all sizes up to the largest, and rows by number; returns what the queue took.
uint64_t taken(kernels::Device& device, const WorkspaceShape* expected) {
  const WorkspaceShape& most = kLargest;
  const uint32_t key_dim = most.latent_dim + most.rope_dim;
  const uint64_t queries = uint64_t{most.rows} * most.heads;
  const auto buffer =
      device.allocate((queries * (2 * most.latent_dim + most.rope_dim) + most.positions * key_dim) * sizeof(float));
  REQUIRE(buffer);
  const auto place = [&](uint64_t floats) { return kernels::Slice{buffer->get(), floats * sizeof(float)}; };
  const uint64_t before = gpu::emulator_counts().allocated_bytes;
  const auto queue = device.make_queue();
  if (expected != nullptr) queue->expect(*expected);
  for (uint32_t rows = 1; rows <= most.rows; ++rows) {
    for (const uint32_t first : {0U, most.positions - rows}) {
      queue->mla_attend({.query_latent = place(0),
                         .query_rope = place(queries * most.latent_dim),
                         .cache = place(queries * (2 * most.latent_dim + most.rope_dim)),
                         .out = place(queries * (most.latent_dim + most.rope_dim)),
                         .rows = rows,
                         .heads = most.heads,
                         .latent_dim = most.latent_dim,
                         .rope_dim = most.rope_dim,
                         .rope_row_stride = most.heads * most.rope_dim,
                         .rope_head_stride = most.rope_dim,
                         .first_position = first,
                         .scale = 1});
    }
  }
  const kernels::Rows from{.data = place(0), .rows = 2, .cols = 4, .stride = 4};
  const kernels::Rows to{.data = place(8), .rows = 2, .cols = 4, .stride = 4};
  queue->gather_rows(to, from, std::array<uint32_t, 2>{1, 0});
  (void)queue->record([&] { queue->add(to, from); });  // counters are there for whatever is recorded
  queue->synchronize();
  return gpu::emulator_counts().allocated_bytes - before;
}

}  // namespace

TEST_CASE("cuda queue: takes the workspace that was planned, and no more than once") {
  gpu::configure_emulator({});
  const auto device = kernels::make_cuda_device({});
  REQUIRE(device);
  const uint64_t planned = (*device)->workspace_bytes(kLargest);
  CHECK(taken(**device, &kLargest) == planned);
  // What is outgrown stays: a queue that was not told takes more.
  CHECK(taken(**device, nullptr) > planned);
  // One that was told too little works.
  WorkspaceShape little = kLargest;
  little.rows = 1;
  CHECK(taken(**device, &little) > (*device)->workspace_bytes(little));
}

TEST_CASE("cuda queue: its workspace grows with every number of the shape") {
  using kernels::cuda::queue_workspace_bytes;
  const WorkspaceShape v3{.rows = 256, .heads = 128, .latent_dim = 512, .rope_dim = 64, .positions = 4096};
  for (uint32_t WorkspaceShape::*number : {&WorkspaceShape::rows, &WorkspaceShape::heads, &WorkspaceShape::latent_dim,
                                           &WorkspaceShape::rope_dim, &WorkspaceShape::positions}) {
    uint64_t before = 0;
    for (const uint32_t value : {1U, 2U, 16U, 64U, 128U, 512U, 4096U}) {
      WorkspaceShape shape = v3;
      shape.*number = value;
      const uint64_t bytes = queue_workspace_bytes(shape);
      CHECK(bytes >= before);
      before = bytes;
    }
  }
  constexpr uint64_t kMiB = 1 << 20;
  CHECK(queue_workspace_bytes(v3) <= 130 * kMiB);
  CHECK(queue_workspace_bytes(v3) >= 2 * kMiB);
  CHECK(queue_workspace_bytes({}) < 2 * kMiB);
}

}  // namespace dspack::test::workspace_test
