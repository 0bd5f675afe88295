// Random calls of attention, how they reach the kernels, and what they should give. Threads: one thread a lab.
// Lifetime and errors: as gpu_lab.h.
#pragma once

#include <algorithm>
#include <ostream>
#include <span>
#include <vector>

#include "kernels/cpu/rows.h"
#include "kernels/cuda/attention/attend.h"
#include "tests/kernels/cuda/gpu_lab.h"
#include "tests/kernels/reference.h"
#include "tests/support/cache_rows.h"
#include "tests/support/numeric.h"

namespace dspack::test {

struct AttendCase {
  uint32_t rows = 1;
  uint32_t heads = 1;
  uint32_t latent = 16;
  uint32_t rope = 8;
  uint32_t first_position = 0;
  float sharpness = 1;  // factor of the latent queries
  Dtype dtype = Dtype::f32;
  size_t cache_offset = 0;  // bytes behind an aligned place
};

inline std::ostream& operator<<(std::ostream& out, const AttendCase& c) {
  return out << c.rows << " rows from position " << c.first_position << ", " << c.heads << " heads, latent " << c.latent
             << ", rope " << c.rope << ", sharpness " << c.sharpness << ", cache " << to_string(c.dtype) << " at "
             << c.cache_offset;
}

inline constexpr uint32_t kRopeGap = 3;

struct AttendInput {
  std::vector<float> latent;  // queries [rows, heads, latent]
  std::vector<float> rope;    // queries [rows, heads, rope + 3], as if cut from a wider projection
  std::vector<float> cache;   // [positions, latent + rope], values of the cache's type
};

inline float stored_value(float value, Dtype dtype) {
  if (dtype == Dtype::bf16) return bf16_to_f32(f32_to_bf16(value));
  if (dtype == Dtype::f16) return f16_to_f32(f32_to_f16(value));
  return value;
}

/// The CPU's FP8 rows of a cache.
inline std::vector<uint8_t> fp8_rows(const std::vector<float>& cache, const AttendCase& c) {
  const kernels::LatentShape shape{.latent_dim = c.latent, .rope_dim = c.rope};
  const auto rows = static_cast<uint32_t>(cache.size() / (c.latent + c.rope));
  std::vector<uint8_t> bytes(rows * kernels::fp8_row(shape).bytes);
  kernels::store_latent_rows(std::as_writable_bytes(std::span(bytes)).data(), shape, cache.data(), c.latent + c.rope,
                             {0, rows});
  return bytes;
}

inline AttendInput random_input(const AttendCase& c, Random& random) {
  AttendInput input;
  const size_t queries = size_t{c.rows} * c.heads;
  input.latent = random.normals(queries * c.latent);
  for (float& value : input.latent)
    value *= c.sharpness;
  input.rope = random.normals(queries * (c.rope + kRopeGap));
  input.cache = random.normals(size_t{c.first_position + c.rows} * (c.latent + c.rope));
  if (c.dtype == Dtype::f8_e4m3) {
    input.cache = decoded_latents(fp8_rows(input.cache, c), {.latent_dim = c.latent, .rope_dim = c.rope});
    return input;
  }
  for (float& value : input.cache)
    value = stored_value(value, c.dtype);
  return input;
}

inline float softmax_scale(const AttendCase& c) {
  return 1.0F / std::sqrt(static_cast<float>(c.latent + c.rope));
}

inline const void* put_cache(GpuLab& lab, const AttendInput& input, const AttendCase& c) {
  if (c.dtype == Dtype::f32) return lab.put(input.cache, c.cache_offset);
  if (c.dtype == Dtype::f8_e4m3) return lab.put(fp8_rows(input.cache, c), c.cache_offset);
  std::vector<uint16_t> bits;
  for (const float value : input.cache)
    bits.push_back(c.dtype == Dtype::bf16 ? f32_to_bf16(value) : f32_to_f16(value));
  return lab.put(bits, c.cache_offset);
}

enum class Position { known, live };

inline bool is_split(kernels::cuda::AttendChoice choice) {
  return choice != kernels::cuda::AttendChoice::exact && tensor_tile(choice).terms > 1;
}

/// Positions that each row of the input sees in place of all up to its own; most 0: none is chosen.
struct ChosenRows {
  uint32_t most = 0;
  std::vector<uint32_t> ids;  // [rows, most]
  std::vector<uint32_t> counts;
};

/// How the same rows are asked for.
struct Call {
  uint32_t first = 0;  // rows of the input
  uint32_t rows = 0;
  uint32_t capacity = 0;  // positions that there may be; of live ones only
  Position position = Position::known;
  kernels::cuda::AttendChoice choice = kernels::cuda::AttendChoice::exact;
  const ChosenRows* chosen = nullptr;
  bool whole_queries = false;  // at multiples of 16 bytes, as a model has them; else at odd places
};

inline Call all_rows(const AttendCase& c) {
  return {.first = 0, .rows = c.rows, .capacity = c.first_position + c.rows};
}

inline std::vector<float> run_attend(GpuLab& lab, const AttendInput& input, const AttendCase& c, const Call& call) {
  const size_t count = size_t{call.rows} * c.heads * c.latent;
  const uint32_t rope_stride = call.whole_queries ? c.rope : c.rope + kRopeGap;
  const size_t offset = call.whole_queries ? 0 : sizeof(float);
  std::vector<float> rope(size_t{c.rows} * c.heads * rope_stride);
  for (size_t query = 0; query < size_t{c.rows} * c.heads; ++query)
    std::copy_n(input.rope.begin() + static_cast<ptrdiff_t>(query * (c.rope + kRopeGap)), c.rope,
                rope.begin() + static_cast<ptrdiff_t>(query * rope_stride));
  const uint32_t position = c.first_position + call.first;
  float* out = lab.poisoned(count, sizeof(float));
  const uint32_t known = call.position == Position::live ? position / 3 : position;
  kernels::cuda::MlaAttendTask task{
      {.query_latent = lab.put(input.latent, offset) + size_t{call.first} * c.heads * c.latent,
       .query_rope = lab.put(rope, offset) + size_t{call.first} * c.heads * rope_stride,
       .cache = put_cache(lab, input, c),
       .out = out,
       .rows = call.rows,
       .heads = c.heads,
       .latent_dim = c.latent,
       .rope_dim = c.rope,
       .rope_row_stride = c.heads * rope_stride,
       .rope_head_stride = rope_stride,
       .first_position = known,
       .scale = softmax_scale(c),
       .cache_dtype = c.dtype}};
  if (call.position == Position::live)
    task.live = {.value = lab.put(std::vector<uint32_t>{position - known}), .limit = call.capacity};
  if (call.chosen != nullptr) {
    task.choice = {.ids = lab.put(call.chosen->ids) + size_t{call.first} * call.chosen->most,
                   .counts = lab.put(call.chosen->counts) + call.first,
                   .most = call.chosen->most};
  }
  task.partial = lab.poisoned(kernels::cuda::attend_scratch_bytes(shape_of(task)) / sizeof(float));
  if (call.choice == kernels::cuda::AttendChoice::exact) {
    attend_exact(lab.stream(), task);
  } else if (is_split(call.choice)) {
    attend_split(lab.stream(), task, call.choice);
  } else {
    attend_tensor(lab.stream(), task, call.choice);
  }
  return lab.get(out, count);
}

/// What attention is, and what bounds the errors of any way to compute it.
struct Reference {
  Doubles values;      // [rows, heads, latent]
  Doubles magnitudes;  // sums of weight * |value|
  Doubles products;    // [rows, heads]: the largest sum of |query * key| * scale
};

inline Reference reference(const AttendInput& input, const AttendCase& c) {
  Reference result;
  const size_t key = c.latent + c.rope;
  for (size_t q = 0; q < size_t{c.rows} * c.heads; ++q) {
    std::vector<Sum> scores(c.first_position + q / c.heads + 1);
    Doubles scaled;
    double largest = 0;
    for (size_t p = 0; p < scores.size(); ++p) {
      for (size_t i = 0; i < c.latent; ++i)
        scores[p].add(static_cast<double>(input.latent[q * c.latent + i]) * input.cache[p * key + i]);
      for (size_t i = 0; i < c.rope; ++i)
        scores[p].add(static_cast<double>(input.rope[q * (c.rope + kRopeGap) + i]) *
                      input.cache[p * key + c.latent + i]);
      scaled.push_back(scores[p].value * softmax_scale(c));
      largest = std::max(largest, scores[p].magnitude * softmax_scale(c));
    }
    result.products.push_back(largest);
    const Doubles weights = softmax(scaled);
    std::vector<Sum> out(c.latent);
    for (size_t p = 0; p < weights.size(); ++p) {
      for (size_t i = 0; i < c.latent; ++i)
        out[i].add(weights[p] * input.cache[p * key + i]);
    }
    for (const Sum& sum : out) {
      result.values.push_back(sum.value);
      result.magnitudes.push_back(sum.magnitude);
    }
  }
  return result;
}

/// Rows alone, in pairs, and with positions that the device reads give the bits of one call.
inline void check_rows_alone(GpuLab& lab, const AttendInput& input, const AttendCase& c,
                             kernels::cuda::AttendChoice choice) {
  const auto wanted = run_attend(lab, input, c, {.rows = c.rows, .choice = choice});
  for (const uint32_t rows : {1U, 2U}) {
    std::vector<float> got;
    for (uint32_t first = 0; first < c.rows; first += rows) {
      const uint32_t count = std::min(rows, c.rows - first);
      const auto part = run_attend(lab, input, c, {.first = first, .rows = count, .choice = choice});
      got.insert(got.end(), part.begin(), part.end());
    }
    CHECK(first_difference(got, wanted) == wanted.size());
  }
  const size_t row = size_t{c.heads} * c.latent;
  const uint32_t count = c.rows - 2;
  for (const uint32_t capacity : {c.first_position + c.rows, 3000U}) {
    const auto live = run_attend(
        lab, input, c, {.first = 2, .rows = count, .capacity = capacity, .position = Position::live, .choice = choice});
    CHECK(first_difference(live, std::span(wanted).subspan(2 * row)) == live.size());
  }
}

}  // namespace dspack::test
