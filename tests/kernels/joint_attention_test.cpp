// What neighbours of an attention block and a router do together has the bits of the operations that they stand for:
// the compositions of kernels/ops.h, which are called by name here.
#include "tests/kernels/lab.h"
#include "tests/kernels/weights.h"
#include "tests/support/numeric.h"

namespace dspack::test::joint_attention_test {
namespace {

using kernels::Queue;
using kernels::Rows;
using kernels::Slice;

constexpr uint32_t kPositions = 24;

Rows spread(Lab& lab, uint32_t rows, uint32_t cols, uint32_t gap, Random& random) {
  const uint32_t stride = cols + gap;
  return {.data = lab.put(random.normals(size_t{rows} * stride)), .rows = rows, .cols = cols, .stride = stride};
}

/// A copy of some memory.
Slice twin(Lab& lab, Slice of, size_t floats) {
  return lab.put(lab.get(of, floats));
}

struct LatentsCase {
  uint32_t latent, rope, query;
  Dtype cache;
  uint32_t rows;
  bool is_live;
  bool stays = false;  // the rows are where they belong
};

void check_latents(Lab& lab, const LatentsCase& c, Random& random) {
  CAPTURE(to_string(c.cache));
  CAPTURE(c.latent);
  CAPTURE(c.query);
  CAPTURE(c.rows);
  CAPTURE(c.is_live);
  const uint32_t first = random.below(kPositions - c.rows);
  const uint32_t known = c.is_live ? first / 2 : first;
  const kernels::LatentShape shape{.latent_dim = c.latent, .rope_dim = c.rope};
  const uint64_t row_bytes = kernels::cache_row_bytes(c.cache, shape);
  const std::vector<uint8_t> untouched(kPositions * row_bytes, 0xab);
  const uint32_t gap = c.stays ? 0 : 3;
  kernels::LatentsArgs args{.rows = spread(lab, c.rows, c.latent + c.rope, gap, random),
                            .shape = shape,
                            .gain = lab.put(random.normals(c.latent)),
                            .query = {},
                            .query_gain = {},
                            .epsilon = 1e-6F,
                            .rope = {.data = {},
                                     .rows = c.rows,
                                     .heads = 1,
                                     .dim = c.rope,
                                     .head_stride = c.rope,
                                     .row_stride = c.latent + c.rope + gap,
                                     .first_position = known,
                                     .cos_sin = lab.put(random.normals(size_t{kPositions} * c.rope))},
                            .cache = {},
                            .cache_dtype = c.cache};
  if (c.query > 0) {
    args.query = spread(lab, c.rows, c.query, 1, random);
    args.query_gain = lab.put(random.normals(c.query));
  }
  const std::vector<uint32_t> behind = {first - known};
  if (c.is_live) args.rope.live = {.value = lab.put(behind), .limit = kPositions};
  const auto put_cache = [&] { return lab.raw(untouched.data(), untouched.size(), 256); };
  kernels::LatentsArgs other = args;
  const size_t row_floats = size_t{c.rows} * args.rows.stride;
  other.rows.data = twin(lab, args.rows.data, row_floats);
  if (c.query > 0) other.query.data = twin(lab, args.query.data, size_t{c.rows} * args.query.stride);
  Slice cache, other_cache;
  if (!c.stays) {
    cache = put_cache();
    other_cache = put_cache();
    args.cache = cache.at(known * row_bytes);
    other.cache = other_cache.at(known * row_bytes);
  }
  args.rope.data = args.rows.data.at(c.latent * sizeof(float));
  other.rope.data = other.rows.data.at(c.latent * sizeof(float));
  lab.queue().finish_latents(args, nullptr);
  lab.queue().Queue::finish_latents(other, nullptr);
  CHECK(lab.get(args.rows.data, row_floats) == lab.get(other.rows.data, row_floats));
  if (c.query > 0) {
    const size_t floats = size_t{c.rows} * args.query.stride;
    CHECK(lab.get(args.query.data, floats) == lab.get(other.query.data, floats));
  }
  if (c.stays) return;
  const auto stored = lab.get<uint8_t>(cache, untouched.size());
  CHECK(stored == lab.get<uint8_t>(other_cache, untouched.size()));
  CHECK(stored != untouched);
}

void check_absorption(Lab& lab, const WeightCase& shape, uint32_t heads, uint32_t rows, Random& random) {
  CAPTURE(shape);
  CAPTURE(rows);
  constexpr uint32_t kNope = 24;
  constexpr uint32_t kRope = 10;
  constexpr uint32_t kWidth = kNope + kRope;
  const uint32_t stride = heads * kWidth + 2;
  const kernels::Weight weight = random_weight(shape, random).put(lab);
  const Slice table = lab.put(random.normals(size_t{kPositions} * kRope));
  const Slice queries = lab.put(random.normals(size_t{rows} * stride));
  const auto args_at = [&](Slice at, Slice to) {
    return std::pair{kernels::RopeArgs{.data = at.at(kNope * sizeof(float)),
                                       .rows = rows,
                                       .heads = heads,
                                       .dim = kRope,
                                       .head_stride = kWidth,
                                       .row_stride = stride,
                                       .first_position = 5,
                                       .cos_sin = table},
                     kernels::HeadLinearArgs{.weight = weight,
                                             .heads = heads,
                                             .head_rows = shape.out / heads,
                                             .first_row = 0,
                                             .rows_used = kNope,
                                             .x = at,
                                             .x_row_stride = stride,
                                             .x_head_stride = kWidth,
                                             .y = to,
                                             .y_row_stride = heads * shape.in,
                                             .y_head_stride = shape.in,
                                             .rows = rows}};
  };
  const Slice other = twin(lab, queries, size_t{rows} * stride);
  const size_t results = size_t{rows} * heads * shape.in;
  const Slice y = lab.poisoned(results), wanted = lab.poisoned(results);
  const auto [rotated, absorbed] = args_at(queries, y);
  lab.queue().absorb(rotated, absorbed);
  const auto [rotated_alone, absorbed_alone] = args_at(other, wanted);
  lab.queue().Queue::absorb(rotated_alone, absorbed_alone);
  CHECK(lab.get(queries, size_t{rows} * stride) == lab.get(other, size_t{rows} * stride));
  CHECK(lab.get(y, results) == lab.get(wanted, results));
}

void check_route(Lab& lab, const WeightCase& shape, const kernels::RouterArgs& router, Random& random) {
  CAPTURE(shape);
  CAPTURE(router.rows);
  const uint32_t rows = router.rows;
  const kernels::Weight weight = random_weight(shape, random).put(lab);
  const Rows x = spread(lab, rows, shape.in, 3, random);
  const auto run = [&](bool together) {
    kernels::RouterArgs args = router;
    args.experts = shape.out;
    args.logits = lab.poisoned(size_t{rows} * shape.out);
    args.ids = lab.poisoned(size_t{rows} * args.top_k);
    args.weights = lab.poisoned(size_t{rows} * args.top_k);
    if (together) {
      lab.queue().route_rows(weight, x, args);
    } else {
      lab.queue().Queue::route_rows(weight, x, args);
    }
    return std::tuple{lab.get(args.logits, size_t{rows} * shape.out),
                      lab.get<uint32_t>(args.ids, size_t{rows} * args.top_k),
                      lab.get(args.weights, size_t{rows} * args.top_k)};
  };
  const auto alone = run(false);
  for (int turn = 0; turn < 3; ++turn)
    CHECK(run(true) == alone);
}

}  // namespace

KERNEL_CASE("finish_latents: the bits of norms, rotation and store") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  Lab lab(Set::kName);
  for (const uint32_t rows : {1U, 3U, 9U}) {
    for (const bool is_live : {false, true}) {
      for (const Dtype cache : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f8_e4m3})
        check_latents(lab, {512, 64, 1536, cache, rows, is_live}, random);
      check_latents(lab, {80, 16, 0, Dtype::f8_e4m3, rows, is_live}, random);  // without latents of queries
      check_latents(lab, {1000, 6, 48, Dtype::f32, rows, is_live}, random);
      check_latents(lab, {33, 10, 200, Dtype::bf16, rows, is_live, true}, random);
    }
  }
}

KERNEL_CASE("absorb: the bits of rope and head_linear_transposed") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  Lab lab(Set::kName);
  for (const uint32_t rows : {1U, 2U, 3U, 8U, 9U}) {
    check_absorption(lab, {Dtype::f8_e4m3, 3 * 40, 528, 40, 128}, 3, rows, random);
    check_absorption(lab, {Dtype::bf16, 5 * 30, 264, 0, 0}, 5, rows, random);
    check_absorption(lab, {Dtype::f16, 2 * 24, 40, 0, 0}, 2, rows, random);
  }
}

KERNEL_CASE("route_rows: the bits of the product and route") {
  SKIP_UNLESS_SET_RUNS();
  Random random;
  CAPTURE(random.seed());
  Lab lab(Set::kName);
  for (const uint32_t rows : {1U, 2U, 5U, 8U, 9U}) {
    kernels::RouterArgs v3;
    v3.rows = rows;
    v3.top_k = 8;
    v3.groups = 8;
    v3.groups_kept = 4;
    check_route(lab, {Dtype::bf16, 256, 1032, 0, 0}, v3, random);
    kernels::RouterArgs lite;
    lite.rows = rows;
    lite.top_k = 6;
    lite.score = kernels::ScoreFunction::softmax;
    lite.normalise = false;
    check_route(lab, {Dtype::f32, 64, 520, 0, 0}, lite, random);
    check_route(lab, {Dtype::bf16, 300, 40, 0, 0}, lite, random);
    check_route(lab, {Dtype::f32, 20, 37, 0, 0}, lite, random);
    check_route(lab, {Dtype::f8_e4m3, 32, 144, 128, 128}, lite, random);
  }
}

}  // namespace dspack::test::joint_attention_test
