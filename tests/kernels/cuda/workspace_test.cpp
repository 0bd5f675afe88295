// What a queue takes of the GPU's memory for itself is what was planned.
#include "kernels/cuda/host/cuda_queue.h"

#include <doctest/doctest.h>

#include <array>

#include "kernels/cuda/host/cuda_device.h"
#include "kernels/cuda/host/queue_memory.h"
#include "tests/support/emulated_gpu/emulator.h"

namespace dspack::test::workspace_test {
namespace {

using kernels::WorkspaceShape;

constexpr WorkspaceShape kLargest{.rows = 6, .heads = 2, .latent_dim = 16, .rope_dim = 16, .positions = 200};
// Scores take more than the partial results of attention, of many positions and few columns.
constexpr WorkspaceShape kLargestChoice{.rows = 6,
                                        .heads = 1,
                                        .latent_dim = 16,
                                        .rope_dim = 16,
                                        .positions = 40'000,
                                        .index_heads = 2,
                                        .index_dim = 8,
                                        .chosen = 50};

/// Choices of positions in calls of all sizes up to the largest.
void choose_all(kernels::Device& device, kernels::Queue& queue, const WorkspaceShape& most) {
  const uint64_t heads = uint64_t{most.rows} * most.index_heads;
  const uint64_t keys = uint64_t{most.positions} * most.index_dim;
  const auto buffer = device.allocate((heads * (most.index_dim + 1) + keys + most.rows * (most.chosen + 1)) * 4);
  REQUIRE(buffer);
  const auto place = [&](uint64_t floats) { return kernels::Slice{buffer->get(), floats * sizeof(float)}; };
  kernels::Weight weight;
  weight.coding = kernels::Coding::f32;
  weight.out = most.positions;
  weight.in = most.index_dim;
  weight.planes[kernels::kCodes] = place(0);
  for (uint32_t rows = 1; rows <= most.rows; ++rows) {
    for (const uint32_t first : {0U, most.positions - rows}) {
      queue.choose({.queries = place(keys),
                    .weights = place(keys + heads * most.index_dim),
                    .keys = weight,
                    .choice = {.ids = place(keys + heads * (most.index_dim + 1)),
                               .counts = place(keys + heads * (most.index_dim + 1) + most.rows * most.chosen),
                               .most = most.chosen},
                    .rows = rows,
                    .heads = most.index_heads,
                    .first_position = first});
    }
  }
  queue.synchronize();
}

/// Attention in calls of all sizes up to the largest, choices likewise, and rows by number; returns what the queue
/// took.
uint64_t taken(kernels::Device& device, const WorkspaceShape& most, const WorkspaceShape* expected) {
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
  if (most.index_heads > 0) choose_all(device, *queue, most);
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
  for (const WorkspaceShape& largest : {kLargest, kLargestChoice}) {
    const uint64_t planned = (*device)->workspace_bytes(largest);
    CHECK(taken(**device, largest, &largest) == planned);
    // What is outgrown stays: a queue that was not told takes more.
    CHECK(taken(**device, largest, nullptr) > planned);
    // One that was told too little works.
    WorkspaceShape little = largest;
    little.rows = 1;
    CHECK(taken(**device, largest, &little) > (*device)->workspace_bytes(little));
  }
}

TEST_CASE("cuda queue: its workspace grows with every number of the shape") {
  using kernels::Precision;
  using kernels::cuda::queue_workspace_bytes;
  const WorkspaceShape v3{.rows = 256, .heads = 128, .latent_dim = 512, .rope_dim = 64, .positions = 4096};
  const WorkspaceShape few_heads{.rows = 256, .heads = 1, .latent_dim = 16, .positions = 4096};
  for (const WorkspaceShape& base : {v3, few_heads}) {
    for (uint32_t WorkspaceShape::*number :
         {&WorkspaceShape::rows, &WorkspaceShape::heads, &WorkspaceShape::latent_dim, &WorkspaceShape::rope_dim,
          &WorkspaceShape::positions, &WorkspaceShape::index_heads, &WorkspaceShape::index_dim,
          &WorkspaceShape::chosen}) {
      uint64_t before = 0;
      for (const uint32_t value : {0U, 1U, 2U, 16U, 64U, 128U, 512U, 4096U, 163'840U}) {
        WorkspaceShape shape = base;
        if (number != &WorkspaceShape::index_heads) shape.index_heads = 64;
        shape.*number = value;
        const uint64_t bytes = queue_workspace_bytes(shape, Precision::exact);
        CHECK(bytes >= before);
        before = bytes;
      }
    }
  }
  constexpr uint64_t kMiB = 1 << 20;
  CHECK(queue_workspace_bytes(v3, Precision::exact) <= 130 * kMiB);
  CHECK(queue_workspace_bytes(v3, Precision::exact) >= 2 * kMiB);
  CHECK(queue_workspace_bytes({}, Precision::exact) < 2 * kMiB);
  // Rounded inputs lie where attention has its partial results.
  CHECK(queue_workspace_bytes(v3, Precision::fp8) == queue_workspace_bytes(v3, Precision::exact));
  CHECK(queue_workspace_bytes({}, Precision::bf16) == queue_workspace_bytes({}, Precision::exact) + 8 * kMiB);
}

}  // namespace dspack::test::workspace_test
