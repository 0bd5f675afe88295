#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "format/base/size.h"
#include "format/weights/weight_format.h"

namespace dspack::format {
namespace {

// Integers with zero points as AutoAWQ and GPTQ store them: transposed, [in, out], several per word. Kernels need rows
// of one output each, so codes are transposed when they are read. Value = (code - zero point) * scale.

/// The dimension of the matrix along which the integers of a `qweight` word run.
enum class PackedAlong : uint8_t { in, out };

struct TransposedLayout {
  PackedAlong along = PackedAlong::in;
  bool interleaved = false;  // AutoAWQ's order of the integers in a word, also in `qzeros`
  uint32_t zero_offset = 0;  // to be added to a stored zero point
};

/// The matrix of a module's `qweight`, `qzeros` and `scales`. Four-bit codes stay four-bit, with zero points and
/// scales; eight-bit codes become BF16, less their zero points, with FP32 scales. If the groups are `ordered`, all of
/// it becomes FP32, since kernels have one scale per group of adjacent columns. `order`: I32 [in], the group of each
/// row of the transposed matrix, or nullptr. `ordered`: whether these groups may differ from the natural ones.
struct TransposedRequest {
  const MatrixRequest& matrix;
  TransposedLayout layout;
  const TensorEntry* order = nullptr;
  bool ordered = false;
};

constexpr uint32_t kTransposedWordBits = 32;
// Positions in a word of AutoAWQ's eight integers: from the low bits up they are 0 2 4 6 1 3 5 7.
constexpr std::array<uint32_t, 8> kInterleaved = {0, 4, 1, 5, 2, 6, 3, 7};
// Outputs that are transposed at a time, so that the cache lines of their rows stay in the L1 cache.
constexpr uint64_t kTurned = 32;

// A function that makes a plane has no state, so the layout is a template parameter.
template <uint32_t kBits, TransposedLayout kLayout>
struct Words {
  static constexpr uint32_t kInWord = kTransposedWordBits / kBits;
  static constexpr uint32_t kMask = (1U << kBits) - 1;

  static uint32_t word(std::span<const std::byte> words, uint64_t index) {
    uint32_t value = 0;
    std::memcpy(&value, words.data() + index * sizeof value, sizeof value);
    return value;
  }
  /// Integer `column` of row `row`, if `columns` integers are packed across a row.
  static uint32_t across(std::span<const std::byte> words, uint64_t row, uint64_t column, uint64_t columns) {
    const auto in_word = static_cast<uint32_t>(column % kInWord);
    const uint32_t place = kLayout.interleaved ? kInterleaved[in_word] : in_word;
    return word(words, row * ceil_div(columns, kInWord) + column / kInWord) >> (place * kBits) & kMask;
  }
  static int32_t code(std::span<const std::byte> words, uint64_t in, uint64_t out, uint64_t outs) {
    if constexpr (kLayout.along == PackedAlong::out) return static_cast<int32_t>(across(words, in, out, outs));
    return static_cast<int32_t>(word(words, in / kInWord * outs + out) >> (in % kInWord * kBits) & kMask);
  }
  /// Refuses a zero point stored less one that is the largest code: some programs read it as 0, others as one more.
  static Result<void> check_zeros(std::span<const std::byte> words, uint64_t groups, uint64_t outs) {
    if constexpr (kLayout.zero_offset == 0) return {};
    for (uint64_t group = 0; group < groups; ++group) {
      for (uint64_t out = 0; out < outs; ++out) {
        if (across(words, group, out, outs) != kMask) continue;
        return Error{ErrorKind::unsupported,
                     fmt::format("the zero point of output {}, group {}, is stored as {}, less one: programs disagree "
                                 "whether it is 0 or {}",
                                 out, group, kMask, kMask + 1)};
      }
    }
    return {};
  }
  static int32_t zero(std::span<const std::byte> words, uint64_t group, uint64_t out, uint64_t outs) {
    return static_cast<int32_t>(across(words, group, out, outs) + kLayout.zero_offset);
  }
};

float scale_at(Dtype dtype, std::span<const std::byte> scales, uint64_t index) {
  float value = 0;
  const uint64_t each = bytes_of(dtype, 1);
  widen_to_f32(dtype, scales.subspan(index * each, each), {&value, 1});
  return value;
}

/// Calls store(out, in) for all elements, `kTurned` outputs at a time.
template <class Store>
void for_each_element(const WeightForm& form, Store store) {
  for (uint64_t first = 0; first < form.out; first += kTurned) {
    const uint64_t end = std::min<uint64_t>(first + kTurned, form.out);
    for (uint64_t in = 0; in < form.in; ++in) {
      for (uint64_t out = first; out < end; ++out)
        store(out, in);
    }
  }
}

constexpr uint64_t kEight = 8;  // four-bit codes per word

/// Transposes 8 x 8 codes: code k of word i becomes code i of word k. Swaps blocks of four by four, of two by two, then
/// single codes.
void turn_eight(std::array<uint32_t, kEight>& words) {
  constexpr std::pair<uint32_t, uint32_t> kSteps[] = {{4, 0x0000ffff}, {2, 0x00ff00ff}, {1, 0x0f0f0f0f}};
  for (const auto& [apart, mask] : kSteps) {
    for (uint32_t i = 0; i < kEight; ++i) {
      if ((i & apart) != 0) continue;
      const uint32_t changed = (words[i] >> (4 * apart) ^ words[i + apart]) & mask;
      words[i + apart] ^= changed;
      words[i] ^= changed << (4 * apart);
    }
  }
}

/// Codes of columns [8 `eighth`, 8 `eighth` + 8) and outputs [`first`, `end`): one word in each output's row.
template <TransposedLayout kLayout>
void turn_columns(const WeightForm& form, std::span<const std::byte> stored, uint64_t eighth, uint64_t first,
                  uint64_t end, std::span<std::byte> to) {
  using W = Words<4, kLayout>;
  const uint64_t row_words = form.in / kEight;
  const auto store = [&](uint64_t out, uint32_t word) {
    std::memcpy(to.data() + (out * row_words + eighth) * sizeof word, &word, sizeof word);
  };
  if constexpr (kLayout.along == PackedAlong::in) {
    for (uint64_t out = first; out < end; ++out)
      store(out, W::word(stored, eighth * form.out + out));
    return;
  }
  const uint64_t words_across = ceil_div(uint64_t{form.out}, kEight);
  for (uint64_t out = first; out < end; out += kEight) {
    std::array<uint32_t, kEight> words{};
    for (uint64_t i = 0; i < kEight; ++i)
      words[i] = W::word(stored, (eighth * kEight + i) * words_across + out / kEight);
    turn_eight(words);
    for (uint64_t i = 0; i < std::min(kEight, end - out); ++i)
      store(out + i, words[kLayout.interleaved ? kInterleaved[i] : i]);
  }
}

/// Codes of four bits, two per byte. Tensors: qweight, and perhaps the groups of rows, which are then the natural ones.
template <TransposedLayout kLayout>
Result<void> turn_codes(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) {
  const WeightForm& form = plane.form;
  const uint64_t row = code_bytes(form.coding, form.in);
  if (form.in % kEight == 0) {
    constexpr uint64_t kOutputs = 128;  // words of one cache line; the lines of so few rows fit the L1 cache
    for (uint64_t first = 0; first < form.out; first += kOutputs) {
      const uint64_t end = std::min<uint64_t>(first + kOutputs, form.out);
      for (uint64_t eighth = 0; eighth < form.in / kEight; ++eighth)
        turn_columns<kLayout>(form, stored[0], eighth, first, end, to);
    }
    return {};
  }
  std::ranges::fill(to, std::byte{0});
  for_each_element(form, [&](uint64_t out, uint64_t in) {
    const auto code = static_cast<uint8_t>(Words<4, kLayout>::code(stored[0], in, out, form.out));
    to[out * row + in / 2] |= static_cast<std::byte>(code << (in % 2 * 4));
  });
  return {};
}

/// Zero points of four-bit codes. Tensors: qzeros.
template <TransposedLayout kLayout>
Result<void> turn_zeros_of_four(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) {
  using W = Words<4, kLayout>;
  const uint64_t groups = plane.elements().shape[0];
  TRY(W::check_zeros(stored[0], groups, plane.form.out));
  for (uint64_t i = 0; i < to.size(); ++i)
    to[i] = static_cast<std::byte>(W::zero(stored[0], i % groups, i / groups, plane.form.out));
  return {};
}

/// Codes of eight bits less their zero points. Tensors: qweight, qzeros, and perhaps the groups of rows, as above.
template <TransposedLayout kLayout>
Result<void> make_differences(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) {
  using W = Words<8, kLayout>;
  const WeightForm& form = plane.form;
  TRY(W::check_zeros(stored[1], plane.tensors[1]->shape[0], form.out));
  for_each_element(form, [&](uint64_t out, uint64_t in) {
    const int32_t value = W::code(stored[0], in, out, form.out) - W::zero(stored[1], in / form.block_in, out, form.out);
    store_difference(to, out * form.in + in, value);
  });
  return {};
}

uint32_t group_at(std::span<const std::byte> order, uint64_t in) {
  uint32_t group = 0;
  std::memcpy(&group, order.data() + in * sizeof group, sizeof group);
  return group;
}

/// Tensors: qweight, qzeros, scales, order. `scales` [groups, out].
template <uint32_t kBits, TransposedLayout kLayout>
Result<void> make_values(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) {
  using W = Words<kBits, kLayout>;
  const WeightForm& form = plane.form;
  const Dtype dtype = plane.tensors[2]->dtype;
  auto* values = reinterpret_cast<float*>(to.data());
  TRY(W::check_zeros(stored[1], plane.tensors[1]->shape[0], form.out));
  for_each_element(form, [&](uint64_t out, uint64_t in) {
    const uint64_t group = group_at(stored[3], in);
    const int32_t value = W::code(stored[0], in, out, form.out) - W::zero(stored[1], group, out, form.out);
    values[out * form.in + in] = static_cast<float>(value) * scale_at(dtype, stored[2], group * form.out + out);
  });
  return {};
}

/// Checks that each group in the last tensor exists.
Result<void> check_order(const StoredPlane& plane, StoredBytes stored) {
  const uint64_t groups = plane.tensors[2]->shape[0];
  for (uint64_t in = 0; in < plane.form.in; ++in) {
    const uint32_t group = group_at(stored.back(), in);
    if (group < groups) continue;
    return Error{ErrorKind::invalid,
                 fmt::format("g_idx has group {} at {}, of {} groups", static_cast<int32_t>(group), in, groups)};
  }
  return {};
}

/// Checks that the groups in the last tensor are the natural ones.
Result<void> check_natural_order(const StoredPlane& plane, StoredBytes stored) {
  for (uint64_t in = 0; in < plane.form.in; ++in) {
    const uint32_t group = group_at(stored.back(), in);
    if (group == in / plane.form.block_in) continue;
    return Error{
        ErrorKind::invalid,
        fmt::format("g_idx has group {} at {} where groups of {} have {}; config.json says \"desc_act\": false",
                    static_cast<int32_t>(group), in, plane.form.block_in, in / plane.form.block_in)};
  }
  return {};
}

/// Transposes [groups, out] to [out, groups].
Result<void> turn_scales(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) {
  const std::vector<uint64_t>& shape = plane.elements().shape;
  const uint64_t each = bytes_of(plane.elements().dtype, 1);
  for (uint64_t group = 0; group < shape[0]; ++group) {
    for (uint64_t out = 0; out < shape[1]; ++out)
      std::memcpy(to.data() + (out * shape[0] + group) * each, stored[0].data() + (group * shape[1] + out) * each,
                  each);
  }
  return {};
}

/// The same, in FP32.
Result<void> turn_and_widen_scales(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) {
  const std::vector<uint64_t>& shape = plane.elements().shape;
  auto* scales = reinterpret_cast<float*>(to.data());
  for (uint64_t group = 0; group < shape[0]; ++group) {
    for (uint64_t out = 0; out < shape[1]; ++out)
      scales[out * shape[0] + group] = scale_at(plane.elements().dtype, stored[0], group * shape[1] + out);
  }
  return {};
}

using Make = decltype(StoredPlane::make);

struct Makers {
  Make codes = nullptr;
  Make zeros = nullptr;  // null: `codes` subtracts them
  Make values = nullptr;
};

template <TransposedLayout kLayout>
Makers makers_of(uint32_t bits) {
  if (bits == 4) return {turn_codes<kLayout>, turn_zeros_of_four<kLayout>, make_values<4, kLayout>};
  return {make_differences<kLayout>, nullptr, make_values<8, kLayout>};
}

Makers makers_of(const TransposedLayout& layout, uint32_t bits) {
  constexpr TransposedLayout kAwq{.along = PackedAlong::out, .interleaved = true, .zero_offset = 0};
  if (layout.along == PackedAlong::out) return makers_of<kAwq>(bits);
  if (layout.zero_offset == 0) return makers_of<TransposedLayout{.along = PackedAlong::in}>(bits);
  return makers_of<TransposedLayout{.along = PackedAlong::in, .interleaved = false, .zero_offset = 1}>(bits);
}

/// Bits per integer, by the shape of qweight; 0: none fits.
uint32_t bits_of(const TensorEntry& codes, const MatrixRequest& request, const TransposedLayout& layout) {
  for (const uint32_t bits : {4U, 8U}) {
    const uint32_t in_word = kTransposedWordBits / bits;
    const bool is_along_in = layout.along == PackedAlong::in;
    const std::vector<uint64_t> shape{is_along_in ? ceil_div(request.in, in_word) : request.in,
                                      is_along_in ? request.out : ceil_div(request.out, in_word)};
    if (codes.shape == shape && request.stored.bits.value_or(bits) == bits) return bits;
  }
  return 0;
}

Result<void> check_beside(const Checkpoint& checkpoint, const TensorEntry& tensor, Dtype dtype,
                          const std::vector<uint64_t>& shape) {
  if (tensor.dtype == dtype && tensor.shape == shape) return {};
  return Error{ErrorKind::invalid,
               fmt::format("{} is {} {} where {} {} belongs to the codes", place_of(checkpoint, tensor),
                           to_string(tensor.dtype), shown_shape(tensor.shape), to_string(dtype), shown_shape(shape))};
}

Result<StoredMatrix> find_transposed(const Checkpoint& checkpoint, const TransposedRequest& request) {
  const MatrixRequest& wanted = request.matrix;
  const std::string module = module_of(wanted.name);
  TRY_ASSIGN(const auto* codes, find_tensor(checkpoint, module + "qweight"));
  TRY_ASSIGN(const auto* zeros, find_tensor(checkpoint, module + "qzeros"));
  TRY_ASSIGN(const auto* scales, find_tensor(checkpoint, module + "scales"));
  const uint32_t bits = codes->dtype == Dtype::i32 ? bits_of(*codes, wanted, request.layout) : 0;
  if (bits == 0) {
    const std::string said = wanted.stored.bits ? fmt::format(" of {} bits", *wanted.stored.bits) : " of 4 or 8 bits";
    return Error{ErrorKind::invalid,
                 fmt::format("{} is {} {} where config.json asks for {} x {} integers{}", place_of(checkpoint, *codes),
                             to_string(codes->dtype), shown_shape(codes->shape), wanted.in, wanted.out, said)};
  }
  if (scales->dtype != Dtype::f16 && scales->dtype != Dtype::bf16 && scales->dtype != Dtype::f32) {
    return Error{ErrorKind::unsupported, fmt::format("{} is stored as {}; scales can be F16, BF16 and F32",
                                                     place_of(checkpoint, *scales), to_string(scales->dtype))};
  }
  const Coding coding = request.ordered ? Coding::f32 : bits == 4 ? Coding::u4 : Coding::bf16;
  StoredMatrix matrix{.form = {.coding = coding, .out = wanted.out, .in = wanted.in}, .planes = {}};
  if (scales->shape.size() != 2 || scales->shape[1] != wanted.out || scales->shape[0] == 0)
    return misfit(checkpoint, *scales, matrix.form, ", a row for each group");
  const uint64_t groups = scales->shape[0];
  TRY_ASSIGN(const uint32_t group, group_of(checkpoint, *scales, groups, wanted.stored, matrix.form));
  TRY(check_beside(checkpoint, *zeros, Dtype::i32, {groups, ceil_div(wanted.out, kTransposedWordBits / bits)}));
  if (request.order != nullptr) TRY(check_beside(checkpoint, *request.order, Dtype::i32, {wanted.in}));
  const Makers makers = makers_of(request.layout, bits);
  StoredPlane& plane = matrix.planes[kCodes];
  if (request.ordered) {
    plane = plane_of(*codes, matrix.form, kCodes);
    plane.tensors = {codes, zeros, scales, request.order};
    plane.make = makers.values;
    plane.check = check_order;
    return matrix;
  }
  matrix.form.block_out = 1;
  matrix.form.block_in = group;
  if (bits == 4) matrix.form.scale = scale_coding_of(scales->dtype).value();
  plane = plane_of(*codes, matrix.form, kCodes);
  plane.make = makers.codes;
  if (makers.zeros == nullptr) {
    plane.tensors.push_back(zeros);
  } else {
    matrix.planes[kZeros] = plane_of(*zeros, matrix.form, kZeros);
    matrix.planes[kZeros].make = makers.zeros;
  }
  if (request.order != nullptr) {
    plane.tensors.push_back(request.order);
    plane.check = check_natural_order;
  }
  StoredPlane& turned = matrix.planes[kScales];
  turned =
      finite_values(bits == 4 ? plane_of(*scales, matrix.form, kScales) : widened_plane(*scales, groups * wanted.out));
  turned.make = bits == 4 ? turn_scales : turn_and_widen_scales;
  return matrix;
}

// qweight I32 [in / 8, out], qzeros I32 [groups, out / 8], scales F16 [groups, out], g_idx I32 [in], the group of each
// row (AutoGPTQ, nn_modules/qlinear). Zero points are stored less one unless "checkpoint_format" is "gptq_v2", which
// cannot be seen from the tensors.
constexpr std::array<std::string_view, 4> kGptqSuffixes = {"qweight", "qzeros", "scales", "g_idx"};

bool stores_gptq(const Checkpoint& checkpoint, std::string_view name) {
  return find_tensor(checkpoint, module_of(name) + "qweight").has_value();
}

Result<StoredMatrix> find_gptq(const Checkpoint& checkpoint, const MatrixRequest& request) {
  const std::string module = module_of(request.name);
  if (const auto scales = find_tensor(checkpoint, module + "scales"); !scales) return scales.error();
  if (!request.stored.zero_offset) {
    TRY_ASSIGN(const auto* codes, find_tensor(checkpoint, module + "qweight"));
    return Error{ErrorKind::invalid,
                 fmt::format("{} looks like GPTQ, and config.json has no quantization_config with \"quant_method\": "
                             "\"gptq\", which says how its zero points are stored",
                             place_of(checkpoint, *codes))};
  }
  const auto order = find_tensor(checkpoint, module + "g_idx");
  const bool is_ordered = request.stored.ordered.value_or(false);
  if (is_ordered && !order) return order.error();
  return find_transposed(
      checkpoint,
      {.matrix = request,
       .layout = {.along = PackedAlong::in, .interleaved = false, .zero_offset = *request.stored.zero_offset},
       .order = order ? *order : nullptr,
       .ordered = is_ordered});
}

Result<MatrixShape> gptq_shape(const Checkpoint& checkpoint, std::string_view name, const Quantization& stored) {
  TRY_ASSIGN(const auto* codes, find_tensor(checkpoint, module_of(name) + "qweight"));
  TRY_ASSIGN(MatrixShape shape, shape_of_codes(checkpoint, *codes, 32 / stored.bits.value_or(4), true));
  // The last words may be padded; g_idx has an entry per existing column.
  const auto order = find_tensor(checkpoint, module_of(name) + "g_idx");
  const uint64_t columns = order && (*order)->shape.size() == 1 ? (*order)->shape[0] : 0;
  if (columns >= 1 && columns < shape.in) shape.in = static_cast<uint32_t>(columns);
  return shape;
}

// AutoAWQ's "gemm": qweight I32 [in, out / 8], qzeros I32 [groups, out / 8], scales F16 [groups, out] (AutoAWQ,
// awq/utils/packing_utils.py). GPTQ's tensors have the same names, but its qweight is as wide as its scales.
constexpr std::array<std::string_view, 3> kAwqSuffixes = {"qweight", "qzeros", "scales"};

bool stores_awq(const Checkpoint& checkpoint, std::string_view name) {
  const auto codes = find_tensor(checkpoint, module_of(name) + "qweight");
  if (!codes || (*codes)->shape.size() != 2) return false;
  const auto scales = find_tensor(checkpoint, module_of(name) + "scales");
  return scales && !(*scales)->shape.empty() && (*scales)->shape.back() != (*codes)->shape.back();
}

Result<StoredMatrix> find_awq(const Checkpoint& checkpoint, const MatrixRequest& request) {
  return find_transposed(
      checkpoint, {.matrix = request, .layout = {.along = PackedAlong::out, .interleaved = true, .zero_offset = 0}});
}

Result<MatrixShape> awq_shape(const Checkpoint& checkpoint, std::string_view name, const Quantization& /*stored*/) {
  TRY_ASSIGN(const auto* codes, find_tensor(checkpoint, module_of(name) + "qweight"));
  TRY_ASSIGN(const auto* scales, find_tensor(checkpoint, module_of(name) + "scales"));
  TRY_ASSIGN(MatrixShape shape, shape_of_codes(checkpoint, *codes, 1, true));
  TRY_ASSIGN(const MatrixShape groups, shape_of_codes(checkpoint, *scales, 1, true));
  shape.out = groups.out;  // the last words of codes may be padded
  return shape;
}

}  // namespace

WeightFormat gptq_format() {
  return {.description = "GPTQ",
          .suffixes = kGptqSuffixes,
          .codes = "qweight",
          .stores = stores_gptq,
          .find = find_gptq,
          .scaled = {},
          .shape = gptq_shape};
}

WeightFormat awq_format() {
  return {.description = "AWQ",
          .suffixes = kAwqSuffixes,
          .codes = "qweight",
          .stores = stores_awq,
          .find = find_awq,
          .scaled = {},
          .shape = awq_shape};
}

}  // namespace dspack::format
