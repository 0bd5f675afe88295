// Attention over a choice, of every kernel: the bits of attention over a cache that holds the chosen rows alone.
#include "tests/kernels/cuda/attend_lab.h"

namespace dspack::test::chosen_attend_test {
namespace {

using kernels::cuda::AttendChoice;

constexpr AttendChoice kAllChoices[] = {AttendChoice::exact,       AttendChoice::tensor_64x2, AttendChoice::tensor_64x1,
                                        AttendChoice::tensor_16x2, AttendChoice::tensor_16x1, AttendChoice::split_32x2,
                                        AttendChoice::split_16x2};

/// Each position with the same chance, of each row another number of them.
ChosenRows random_choice(const AttendCase& c, uint32_t most, Random& random) {
  ChosenRows chosen{.most = most, .ids = std::vector<uint32_t>(size_t{c.rows} * most, 0xfffffff0), .counts = {}};
  for (uint32_t row = 0; row < c.rows; ++row) {
    const uint32_t positions = c.first_position + row + 1;
    uint32_t count = 0;
    uint32_t wanted = std::min(positions, most) - random.below(std::min(positions, most) / 2 + 1);
    for (uint32_t position = 0; position < positions; ++position) {
      if (random.below(positions - position) >= wanted) continue;
      chosen.ids[row * most + count++] = position;
      --wanted;
    }
    chosen.counts.push_back(count);
  }
  return chosen;
}

/// One row of the input by itself, over a cache of what it chose.
std::vector<float> attend_alone(GpuLab& lab, const AttendInput& input, const AttendCase& c, const ChosenRows& chosen,
                                uint32_t row, AttendChoice choice) {
  const size_t key = c.latent + c.rope;
  AttendCase alone = c;
  alone.rows = 1;
  alone.first_position = chosen.counts[row] - 1;
  AttendInput of_row;
  const auto part = [&](const std::vector<float>& values) {
    const size_t length = values.size() / c.rows;
    return std::vector<float>(values.begin() + static_cast<ptrdiff_t>(row * length),
                              values.begin() + static_cast<ptrdiff_t>((row + 1) * length));
  };
  of_row.latent = part(input.latent);
  of_row.rope = part(input.rope);
  for (uint32_t i = 0; i < chosen.counts[row]; ++i) {
    const float* from = input.cache.data() + chosen.ids[row * chosen.most + i] * key;
    of_row.cache.insert(of_row.cache.end(), from, from + key);
  }
  return run_attend(lab, of_row, alone, {.rows = 1, .choice = choice});
}

void check_chosen(const AttendCase& c, uint32_t most, AttendChoice choice, Random& random) {
  CAPTURE(c);
  CAPTURE(most);
  CAPTURE(static_cast<int>(choice));
  GpuLab lab(random.seed());
  const AttendInput input = random_input(c, random);
  const ChosenRows chosen = random_choice(c, most, random);
  const auto got = run_attend(lab, input, c, {.rows = c.rows, .choice = choice, .chosen = &chosen});
  const size_t length = size_t{c.heads} * c.latent;
  for (uint32_t row = 0; row < c.rows; ++row) {
    const auto wanted = attend_alone(lab, input, c, chosen, row, choice);
    CHECK(first_difference(std::span(got).subspan(row * length, length), wanted) == length);
  }
  // Of a position that the device learns, in a cache with more room.
  const auto live = run_attend(lab, input, c,
                               {.first = 1,
                                .rows = c.rows - 1,
                                .capacity = 5000,
                                .position = Position::live,
                                .choice = choice,
                                .chosen = &chosen});
  CHECK(first_difference(live, std::span(got).subspan(length)) == live.size());
}

}  // namespace

TEST_CASE("cuda: attention over a choice has the bits of attention over a cache of what was chosen") {
  Random random;
  CAPTURE(random.seed());
  for (const AttendChoice choice : kAllChoices) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8_e4m3}) {
      if (is_split(choice) && dtype != Dtype::bf16) continue;
      check_chosen({3, 5, 48, 16, 200, 1, dtype}, 150, choice, random);  // several rows would share a block
      check_chosen({2, 20, 64, 0, 300, 1, dtype}, 70, choice, random);   // a block's last queries are none
      check_chosen({2, 80, 32, 16, 90, 2, dtype}, 64, choice, random);   // and more than one block serves a row
    }
  }
}

TEST_CASE("cuda: attention over a choice at DeepSeek-V3.2's sizes, and over keys wider than a panel") {
  Random random;
  CAPTURE(random.seed());
  check_chosen({2, 128, 512, 64, 400, 1, Dtype::bf16}, 130, AttendChoice::exact, random);
  check_chosen({2, 128, 512, 64, 400, 1, Dtype::f8_e4m3}, 130, AttendChoice::tensor_64x2, random);
  check_chosen({2, 3, 1104, 40, 100, 1, Dtype::f8_e4m3}, 70, AttendChoice::exact, random);
}

TEST_CASE("cuda: attention over a choice of all positions has the bits of attention without one") {
  Random random;
  CAPTURE(random.seed());
  for (const AttendChoice choice : kAllChoices) {
    const AttendCase c{5, 6, 32, 16, 130, 1, Dtype::bf16};
    CAPTURE(static_cast<int>(choice));
    ChosenRows all{.most = 200, .ids = std::vector<uint32_t>(c.rows * 200U), .counts = {}};
    for (uint32_t row = 0; row < c.rows; ++row) {
      all.counts.push_back(c.first_position + row + 1);
      for (uint32_t i = 0; i < all.counts.back(); ++i)
        all.ids[row * all.most + i] = i;
    }
    GpuLab lab(random.seed());
    const AttendInput input = random_input(c, random);
    const auto wanted = run_attend(lab, input, c, {.rows = c.rows, .choice = choice});
    const auto got = run_attend(lab, input, c, {.rows = c.rows, .choice = choice, .chosen = &all});
    CHECK(first_difference(got, wanted) == wanted.size());
  }
}

TEST_CASE("cuda: attention over a choice by runs: the last one, of fewer rows, reads no row of the next call") {
  Random random;
  CAPTURE(random.seed());
  // The scratch has room for 15 rows: runs of 15 rows and one. The rows after these have a list of one position that
  // no cache has.
  constexpr uint32_t kRows = 16;
  const AttendCase c{2 * kRows - 1, 128, 512, 0, 0, 1, Dtype::bf16};
  const AttendInput input = random_input(c, random);
  ChosenRows chosen = random_choice(c, 2048, random);
  for (uint32_t row = kRows; row < c.rows; ++row) {
    chosen.counts[row] = 1;
    chosen.ids[row * chosen.most] = 0xfffffff0;
  }
  GpuLab lab(random.seed());
  const auto at_once = run_attend(lab, input, c, {.rows = kRows, .chosen = &chosen});
  const auto by_runs =
      run_attend(lab, input, c, {.rows = kRows, .capacity = 5000, .position = Position::live, .chosen = &chosen});
  CHECK(first_difference(by_runs, at_once) == at_once.size());
}

TEST_CASE("cuda: attention over a choice: the order of threads and blocks changes no bit") {
  Random random;
  CAPTURE(random.seed());
  for (const AttendChoice choice : {AttendChoice::exact, AttendChoice::tensor_64x2, AttendChoice::tensor_16x1}) {
    const AttendCase c{3, 18, 48, 16, 250, 1, Dtype::f8_e4m3};
    const AttendInput input = random_input(c, random);
    const ChosenRows chosen = random_choice(c, 140, random);
    GpuLab first(1);
    const auto wanted = run_attend(first, input, c, {.rows = c.rows, .choice = choice, .chosen = &chosen});
    for (const uint64_t seed : {2, 3, 4}) {
      GpuLab lab(seed);
      const auto got = run_attend(lab, input, c, {.rows = c.rows, .choice = choice, .chosen = &chosen});
      CHECK(first_difference(got, wanted) == wanted.size());
    }
  }
}

TEST_CASE("cuda: a choice bounds the splits of attention, and a block serves one row") {
  using kernels::cuda::AttendShape;
  const AttendShape all{.rows = 8, .heads = 20, .latent_dim = 512, .rope_dim = 64, .position_limit = 163'840};
  AttendShape chosen = all;
  chosen.position_limit = 2048;
  chosen.is_chosen = true;
  for (const AttendChoice choice : kAllChoices) {
    const gpu::LaunchShape launch = attend_launch(chosen, choice);
    const uint32_t queries =
        choice == AttendChoice::exact ? kernels::cuda::kExactTile.queries : kernels::cuda::tensor_tile(choice).queries;
    CHECK(launch.grid_x == 8 * ((20 + queries - 1) / queries));
    CHECK(launch.grid_y == 2048 / split_unit(choice));
    CHECK(attend_splits(chosen, choice).scratch_bytes <= attend_splits(all, choice).scratch_bytes);
  }
}

}  // namespace dspack::test::chosen_attend_test
