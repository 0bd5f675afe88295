// The indexer's choice on CUDA beyond what ../choose_test.cpp sees of it: long contexts, runs of rows, recorded steps,
// the order of threads, launches.
#include "kernels/cuda/sparse/choose.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/cuda/host/cuda_device.h"
#include "tests/kernels/cuda/gpu_lab.h"

namespace dspack::test::choose_test {
namespace {

namespace cuda = kernels::cuda;
using Ids = std::vector<uint32_t>;

/// Scores that are the keys times the row's sign: two heads of one value, max(s k, 0) - max(-s k, 0).
struct ScoreCase {
  std::vector<float> keys;
  std::vector<float> signs;  // of the rows
  uint32_t first_position = 0;
  uint32_t most = 1;
};

Ids best_of(const ScoreCase& c, uint32_t row) {
  Ids ids(c.first_position + row + 1);
  std::iota(ids.begin(), ids.end(), 0U);
  std::ranges::stable_sort(ids,
                           [&](uint32_t a, uint32_t b) { return c.keys[a] * c.signs[row] > c.keys[b] * c.signs[row]; });
  ids.resize(std::min<size_t>(ids.size(), c.most));
  std::ranges::sort(ids);
  return ids;
}

/// `limit`: positions that there may be; the device reads `live` of the position.
std::vector<Ids> chosen(GpuLab& lab, const ScoreCase& c, uint32_t limit = 0, uint32_t live = 0) {
  const auto rows = static_cast<uint32_t>(c.signs.size());
  std::vector<float> queries;
  std::vector<float> weights;
  for (const float sign : c.signs) {
    queries.insert(queries.end(), {sign, -sign});
    weights.insert(weights.end(), {1, -1});
  }
  cuda::ChooseTask task{{.queries = lab.put(queries),
                         .weights = lab.put(weights),
                         .keys = {},
                         .choice = {.ids = lab.put(Ids(size_t{rows} * c.most, 0xdeadbeef)),
                                    .counts = lab.put(Ids(rows, 0xdeadbeef)),
                                    .most = c.most},
                         .rows = rows,
                         .heads = 2,
                         .first_position = c.first_position - live}};
  task.keys.coding = kernels::Coding::f32;
  task.keys.out = static_cast<uint32_t>(c.keys.size());
  task.keys.in = 1;
  task.keys.planes[kernels::kCodes] = lab.put(c.keys);
  if (limit > 0) task.live = {.value = lab.put(Ids{live}), .limit = std::max(limit, c.first_position + rows)};
  const uint64_t bytes = cuda::choose_scratch_bytes(rows, task.position_limit());
  task.scratch = reinterpret_cast<std::byte*>(lab.poisoned((bytes + 3) / 4));
  task.counters = lab.put(std::vector<cuda::ChooseCounters>(cuda::kMaxChooseRows));
  cuda::run_choose(lab.stream(), task);
  // What another call is to find.
  const auto counters = lab.get(reinterpret_cast<uint32_t*>(task.counters), sizeof(cuda::ChooseCounters) / 4 * rows);
  CHECK(std::ranges::all_of(counters, [](uint32_t count) { return count == 0; }));
  const Ids all = lab.get(task.choice.ids, size_t{rows} * c.most);
  const Ids counts = lab.get(task.choice.counts, rows);
  std::vector<Ids> choices;
  for (size_t row = 0; row < rows; ++row)
    choices.emplace_back(all.begin() + static_cast<ptrdiff_t>(row * c.most),
                         all.begin() + static_cast<ptrdiff_t>(row * c.most + std::min(counts[row], c.most)));
  return choices;
}

void check(GpuLab& lab, const ScoreCase& c, uint32_t limit = 0, uint32_t live = 0) {
  const auto choices = chosen(lab, c, limit, live);
  for (uint32_t row = 0; row < choices.size(); ++row)
    CHECK(choices[row] == best_of(c, row));
}

}  // namespace

TEST_CASE("cuda: a choice among 160,000 positions, spread out and alike") {
  Random random;
  CAPTURE(random.seed());
  GpuLab lab(random.seed());
  ScoreCase c{.keys = random.normals(160'000), .signs = {1}, .first_position = 159'999, .most = 2048};
  check(lab, c);
  for (float& key : c.keys)  // three values: no list holds those at the boundary
    key = static_cast<float>(random.below(3));
  check(lab, c);
}

TEST_CASE("cuda: a choice where scores agree in all digits but the last ones") {
  Random random;
  CAPTURE(random.seed());
  GpuLab lab(random.seed());
  ScoreCase c{.keys = {}, .signs = {1, -1}, .first_position = 7000, .most = 3000};
  for (const uint32_t different : {8U, 1U << 10, 1U << 12, 1U << 22}) {
    CAPTURE(different);
    c.keys.clear();
    for (uint32_t i = 0; i < 7002; ++i)
      c.keys.push_back(std::bit_cast<float>(0x3f800000U + random.below(different)));
    check(lab, c);
  }
}

TEST_CASE("cuda: choices in runs of as many rows as the scratch holds, at positions that the device reads") {
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kLimit = 1 << 20;
  GpuLab lab(random.seed());
  ScoreCase c{.keys = random.normals(420), .signs = random.normals(17), .first_position = 400, .most = 64};
  REQUIRE(cuda::choose_runs(17, kLimit).rows_a_run < 9);
  check(lab, c, kLimit, 399);
  c.first_position = 57;  // the first rows have no choice to make
  check(lab, c, kLimit, 57);
}

TEST_CASE("cuda: choices are the same in whatever order threads and blocks run") {
  Random random;
  CAPTURE(random.seed());
  const ScoreCase c{.keys = random.normals(5000), .signs = {1, -1, 0, 1}, .first_position = 4990, .most = 1000};
  GpuLab first(1);
  const auto wanted = chosen(first, c);
  for (const uint64_t seed : {2, 3, 4}) {
    GpuLab lab(seed);
    CHECK(chosen(lab, c) == wanted);
  }
}

TEST_CASE("cuda: one recorded step chooses at every position") {
  Random random;
  CAPTURE(random.seed());
  gpu::configure_emulator({.seed = random.seed()});
  constexpr uint32_t kLimit = 600, kMax = 40;
  const auto device = kernels::make_cuda_device({});
  REQUIRE(device);
  const auto queue = (*device)->make_queue();
  const auto buffer = (*device)->allocate(1 << 16);
  REQUIRE(buffer);
  const auto place = [&](uint64_t word) { return kernels::Slice{buffer->get(), word * 4}; };
  const auto upload = [&](uint64_t word, const auto& values) {
    queue->upload(place(word), std::as_bytes(std::span(values)));
    queue->synchronize();
  };
  ScoreCase c{.keys = random.normals(kLimit), .signs = {1}, .first_position = 0, .most = kMax};
  upload(0, c.keys);
  upload(1000, std::vector<float>{1, -1, 1, -1});
  kernels::Weight keys;
  keys.coding = kernels::Coding::f32;
  keys.out = kLimit;
  keys.in = 1;
  keys.planes[kernels::kCodes] = place(0);
  const kernels::ChooseArgs args{.queries = place(1000),
                                 .weights = place(1002),
                                 .keys = keys,
                                 .choice = {.ids = place(2000), .counts = place(3000), .most = kMax},
                                 .rows = 1,
                                 .heads = 2,
                                 .live = {.value = place(3001), .limit = kLimit}};
  queue->expect({.rows = 1, .positions = kLimit, .index_heads = 2, .index_dim = 1, .chosen = kMax});
  const auto step = queue->record([&] { queue->choose(args); });
  REQUIRE(step != nullptr);
  for (const uint32_t position : {0U, 38U, 39U, 40U, 63U, 64U, 599U}) {
    CAPTURE(position);
    upload(3001, Ids{position});
    queue->run(*step);
    Ids count(1);
    queue->download(std::as_writable_bytes(std::span(count)), place(3000));
    queue->synchronize();
    CHECK(count.front() == std::min(position + 1, kMax));
    Ids ids(std::min(count.front(), kMax));
    queue->download(std::as_writable_bytes(std::span(ids)), place(2000));
    queue->synchronize();
    c.first_position = position;
    CHECK(ids == best_of(c, 0));
  }
}

TEST_CASE("cuda: launches of a choice fit every context, and scratch is bounded") {
  constexpr uint64_t kMiB = 1 << 20;
  for (const uint32_t rows : {1U, 8U, 256U, 4096U}) {
    uint64_t before = 0;
    for (const uint32_t limit : {1U, 64U, 65U, 2048U, 163'840U, 1U << 20}) {
      const cuda::ChooseRuns runs = cuda::choose_runs(rows, limit);
      CHECK(runs.order_stride >= limit);
      CHECK(runs.rows_a_run >= 1);
      CHECK(runs.rows_a_run <= cuda::kMaxChooseRows);
      CHECK(runs.rows_a_run * (cuda::kMaxListed * 8 + uint64_t{runs.order_stride} * 4 + runs.order_stride / 8) <=
            runs.scratch_bytes);
      CHECK(runs.scratch_bytes <= 32 * kMiB);
      CHECK(runs.scratch_bytes >= before);
      before = runs.scratch_bytes;
      cuda::ChooseTask task;
      task.keys.in = 128;
      task.heads = 64;
      task.first_position = limit;
      const gpu::LaunchShape scores = cuda::choose_scores_launch(task, rows);
      CHECK(uint64_t{scores.grid_y} * cuda::score_rows_of_block(rows, limit) >= rows);
      CHECK(scores.grid_y <= 65'535);
      CHECK(scores.shared_bytes <= 48 << 10);
      const gpu::LaunchShape select = cuda::choose_select_launch(rows, limit);
      CHECK(select.grid_y == rows);
      CHECK(select.grid_x >= 1);
      CHECK(select.grid_x <= 32);
      CHECK(select.grid_x * rows <= std::max(rows, 128U));
      CHECK(select.threads <= 1024);
      CHECK(select.shared_bytes <= 48 << 10);
    }
  }
  // Decode of V3.2: enough blocks for the 132 multiprocessors of an H100 from 8,192 positions on.
  cuda::ChooseTask decode;
  decode.keys.in = 128;
  decode.heads = 64;
  decode.first_position = 8192;
  CHECK(cuda::choose_scores_launch(decode, 1).grid_x == 128);
  CHECK(cuda::choose_select_launch(1, 131'072).grid_x == 32);
}

}  // namespace dspack::test::choose_test
