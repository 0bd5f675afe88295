// The scores of the indexer's choice, by both kernels: of small whole numbers, which FP32 and BF16 hold and add up
// exactly in any order, so that scores have many ties and choices one right answer.
#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/cuda/host/cuda_device.h"
#include "kernels/cuda/sparse/choose.h"
#include "tests/kernels/cuda/gpu_lab.h"

namespace dspack::test::choose_tensor_test {
namespace {

namespace cuda = kernels::cuda;
using Ids = std::vector<uint32_t>;

struct WholeCase {
  uint32_t rows = 1;
  uint32_t heads = 1;
  uint32_t dim = 16;
  uint32_t first_position = 0;
  uint32_t most = 1;
  Dtype dtype = Dtype::bf16;
  size_t offset = 0;  // of keys and queries, in elements, behind an aligned place
};

std::ostream& operator<<(std::ostream& out, const WholeCase& c) {
  return out << c.rows << " rows from position " << c.first_position << ", " << c.heads << " heads of " << c.dim
             << ", at most " << c.most << ", keys in " << to_string(c.dtype) << " at " << c.offset;
}

struct WholeInput {
  std::vector<float> queries;  // -2 .. 2
  std::vector<float> weights;
  std::vector<float> keys;
  std::vector<float> scales;  // of the keys: 1/2, 1 or 2 where they are FP8, else 1
};

WholeInput random_input(const WholeCase& c, Random& random) {
  const auto whole = [&](size_t count) {
    std::vector<float> values(count);
    for (float& value : values)
      value = static_cast<float>(random.below(5)) - 2;
    return values;
  };
  const size_t heads = size_t{c.rows} * c.heads;
  WholeInput input{.queries = whole(heads * c.dim),
                   .weights = whole(heads),
                   .keys = whole(size_t{c.first_position + c.rows} * c.dim),
                   .scales = std::vector<float>(c.first_position + c.rows, 1.0F)};
  if (c.dtype == Dtype::f8_e4m3) {
    for (float& scale : input.scales)
      scale = std::ldexp(1.0F, static_cast<int>(random.below(3)) - 1);
  }
  return input;
}

Ids best_of(const WholeInput& input, const WholeCase& c, uint32_t row) {
  std::vector<float> scores(c.first_position + row + 1);
  for (size_t position = 0; position < scores.size(); ++position) {
    for (size_t head = size_t{row} * c.heads; head < size_t{row + 1} * c.heads; ++head) {
      float product = 0;
      for (size_t i = 0; i < c.dim; ++i)
        product += input.queries[head * c.dim + i] * input.keys[position * c.dim + i];
      scores[position] += input.weights[head] * std::max(product * input.scales[position], 0.0F);
    }
  }
  Ids ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0U);
  std::ranges::stable_sort(ids, [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  ids.resize(std::min<size_t>(ids.size(), c.most));
  std::ranges::sort(ids);
  return ids;
}

template <class Code>
const void* put_codes(GpuLab& lab, const WholeInput& input, size_t offset, Code (*code_of)(float)) {
  std::vector<Code> codes;
  for (const float key : input.keys)
    codes.push_back(code_of(key));
  return lab.put(codes, offset * sizeof(Code));
}

const void* put_keys(GpuLab& lab, const WholeInput& input, const WholeCase& c) {
  switch (c.dtype) {
    case Dtype::bf16: return put_codes(lab, input, c.offset, f32_to_bf16);
    case Dtype::f16: return put_codes(lab, input, c.offset, f32_to_f16);
    case Dtype::f8_e4m3: return put_codes(lab, input, c.offset, f32_to_f8_e4m3);
    default: return lab.put(input.keys, c.offset * sizeof(float));
  }
}

void check(const WholeCase& c, bool on_tensor_cores, Random& random) {
  CAPTURE(c);
  CAPTURE(on_tensor_cores);
  GpuLab lab(random.below(1000));
  const WholeInput input = random_input(c, random);
  cuda::ChooseTask task{{.queries = lab.put(input.queries, c.offset * sizeof(float)),
                         .weights = lab.put(input.weights),
                         .keys = {},
                         .choice = {.ids = lab.put(Ids(size_t{c.rows} * c.most, 0xdeadbeef)),
                                    .counts = lab.put(Ids(c.rows, 0xdeadbeef)),
                                    .most = c.most},
                         .rows = c.rows,
                         .heads = c.heads,
                         .first_position = c.first_position}};
  task.on_tensor_cores = on_tensor_cores;
  task.keys.coding = *kernels::coding_of(c.dtype);
  task.keys.out = task.position_limit();
  task.keys.in = c.dim;
  task.keys.planes[kernels::kCodes] = put_keys(lab, input, c);
  if (c.dtype == Dtype::f8_e4m3) {
    task.keys.block_out = 1;
    task.keys.block_in = c.dim;
    task.keys.planes[kernels::kScales] = lab.put(input.scales);
  }
  task.scratch = reinterpret_cast<std::byte*>(
      lab.poisoned((cuda::choose_scratch_bytes(c.rows, task.position_limit()) + 3) / sizeof(float)));
  task.counters = lab.put(std::vector<cuda::ChooseCounters>(cuda::kMaxChooseRows));
  cuda::run_choose(lab.stream(), task);
  const Ids all = lab.get(task.choice.ids, size_t{c.rows} * c.most);
  const Ids counts = lab.get(task.choice.counts, c.rows);
  for (uint32_t row = 0; row < c.rows; ++row) {
    const Ids wanted = best_of(input, c, row);
    CHECK(counts[row] == wanted.size());
    const auto begin = all.begin() + ptrdiff_t{row} * c.most;
    CHECK(std::equal(wanted.begin(), wanted.end(), begin));
  }
}

constexpr Dtype kKeyTypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8_e4m3};

}  // namespace

TEST_CASE("cuda: both kernels of the indexer's scores choose by whole numbers what is right, of every type of key") {
  Random random;
  CAPTURE(random.seed());
  for (WholeCase c : {WholeCase{3, 5, 16, 150, 40}, WholeCase{2, 64, 128, 200, 60}, WholeCase{1, 70, 48, 300, 100},
                      WholeCase{4, 32, 112, 90, 33}, WholeCase{9, 3, 32, 60, 64}}) {
    for (const Dtype dtype : kKeyTypes) {
      for (const size_t offset : {0, 1}) {
        c.dtype = dtype;
        c.offset = offset;
        check(c, true, random);
        check(c, false, random);
      }
    }
  }
}

TEST_CASE("cuda: the exact kernel of the indexer's scores takes keys of every length") {
  Random random;
  CAPTURE(random.seed());
  for (const uint32_t dim : {1U, 3U, 17U, 36U, 127U, 129U, 160U, 300U}) {
    for (const Dtype dtype : kKeyTypes)
      check({2, 9, dim, 100, 30, dtype}, false, random);
  }
}

TEST_CASE("cuda: rows that share a block of the scores choose as they do alone") {
  Random random;
  CAPTURE(random.seed());
  // 64 rows of 17 tiles are more than two times 512 blocks.
  constexpr uint32_t kRows = 64;
  REQUIRE(cuda::score_rows_of_block(kRows, 1000 + kRows) > 1);
  check({kRows, 2, 16, 1000, 37}, true, random);
  check({kRows, 2, 16, 1000, 37}, false, random);
}

TEST_CASE("cuda: a queue rounds the operands of scores in precision bf16 and fp8 alone") {
  gpu::configure_emulator({});
  constexpr uint32_t kDim = 16, kPositions = 12, kMax = 4;
  // Scores that grow with the position, and are alike once they are rounded to BF16.
  std::vector<float> words(kPositions * kDim + kDim + 1);
  for (uint32_t position = 0; position < kPositions; ++position)
    words[size_t{position} * kDim] = 1 + static_cast<float>(position) * 0x1p-13F;
  words[kPositions * kDim] = 1;         // the query
  words[kPositions * kDim + kDim] = 1;  // the head's weight
  for (const kernels::Precision precision :
       {kernels::Precision::exact, kernels::Precision::bf16, kernels::Precision::fp8}) {
    const auto device = kernels::make_cuda_device({.precision = precision});
    REQUIRE(device);
    const auto queue = (*device)->make_queue();
    const auto buffer = (*device)->allocate((words.size() + kMax + 1) * sizeof(float));
    REQUIRE(buffer);
    const auto place = [&](uint64_t word) { return kernels::Slice{buffer->get(), word * sizeof(float)}; };
    queue->upload(place(0), std::as_bytes(std::span(words)));
    kernels::ChooseArgs args{.queries = place(kPositions * kDim),
                             .weights = place(kPositions * kDim + kDim),
                             .keys = {},
                             .choice = {.ids = place(words.size()), .counts = place(words.size() + kMax), .most = kMax},
                             .rows = 1,
                             .heads = 1,
                             .first_position = kPositions - 1};
    args.keys.coding = kernels::Coding::f32;
    args.keys.out = kPositions;
    args.keys.in = kDim;
    args.keys.planes[kernels::kCodes] = place(0);
    queue->choose(args);
    Ids ids(kMax);
    queue->download(std::as_writable_bytes(std::span(ids)), args.choice.ids);
    queue->synchronize();
    CHECK(ids == (precision == kernels::Precision::exact ? Ids{8, 9, 10, 11} : Ids{0, 1, 2, 3}));
  }
}

TEST_CASE("cuda: tensor cores compute scores in precision bf16 and fp8, where keys fit them") {
  gpu::Properties properties;
  properties.major = 9;
  CHECK(cuda::fits_tensor_scores(128, properties));
  CHECK(cuda::fits_tensor_scores(64, properties));
  CHECK_FALSE(cuda::fits_tensor_scores(40, properties));
  CHECK_FALSE(cuda::fits_tensor_scores(256, properties));
  properties.major = 7;
  CHECK_FALSE(cuda::fits_tensor_scores(128, properties));
  cuda::ChooseTask task;
  task.heads = 64;
  task.keys.in = 128;
  task.first_position = 131'072;
  task.on_tensor_cores = true;
  CHECK(cuda::choose_scores_launch(task, 1).shared_bytes == 128 * 256);
}

}  // namespace dspack::test::choose_tensor_test
