#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "format/base/size.h"
#include "format/json.h"
#include "format/weights/weight_format.h"

namespace dspack::format {

namespace {

// bitsandbytes as transformers stores it. Four bits (functional.py, QuantState): `weight` U8, two codes per byte, the
// first in the HIGH half, over the matrix as one row; `quant_map` F32 [16], the value of each code; `absmax`, a factor
// per `blocksize` codes, F32, or U8 codes of `nested_quant_map` F32 [256], times `nested_absmax` F32 per
// `nested_blocksize` of them, plus `nested_offset`; sizes are JSON in `quant_state`. Eight bits
// (int8_vectorwise_dequant): `weight` I8 times `SCB` of its row, times 1 / 127. No published checkpoint has experts in
// these codes, so no kernel computes with them: they become FP32 when they are read. That is more exact than the
// library, which rounds to the "dtype" of quant_state.
constexpr std::array<std::string_view, 7> kFourSuffixes = {"weight",
                                                           "weight.absmax",
                                                           "weight.quant_map",
                                                           "weight.nested_absmax",
                                                           "weight.nested_quant_map",
                                                           "weight.quant_state.bitsandbytes__nf4",
                                                           "weight.quant_state.bitsandbytes__fp4"};
constexpr std::array<std::string_view, 3> kEightSuffixes = {"weight", "SCB", "weight_format"};
constexpr std::string_view kNf4State = ".quant_state.bitsandbytes__nf4";
constexpr std::string_view kFp4State = ".quant_state.bitsandbytes__fp4";
constexpr DocumentBounds kStateDocument{"a quant_state", 4096, 64};
constexpr uint64_t kFourBitCodes = 16;
constexpr uint64_t kNestedCodes = 256;
constexpr float kOver127 = 7.874015718698502e-3F;  // the library's constant

// Indices of the tensors of the plane of four-bit codes.
constexpr size_t kWeight = 0;
constexpr size_t kState = 1;
constexpr size_t kMap = 2;
constexpr size_t kAbsmax = 3;
constexpr size_t kNestedAbsmax = 4;  // this and the next: only if factors are codes themselves
constexpr size_t kNestedMap = 5;

const TensorEntry* beside(const Checkpoint& checkpoint, std::string_view name, std::string_view part) {
  const auto found = find_tensor(checkpoint, std::string(name) + std::string(part));
  return found ? *found : nullptr;
}

Result<const TensorEntry*> find_state(const Checkpoint& checkpoint, std::string_view name) {
  const auto* nf4 = beside(checkpoint, name, kNf4State);
  const auto* fp4 = beside(checkpoint, name, kFp4State);
  if (nf4 == nullptr && fp4 == nullptr) return missing_tensor(checkpoint, std::string(name).append(kNf4State));
  if (nf4 != nullptr && fp4 != nullptr) {
    return Error{ErrorKind::invalid,
                 fmt::format("{} is there as well as {}; remove one of them", place_of(checkpoint, *fp4), nf4->name)};
  }
  return nf4 != nullptr ? nf4 : fp4;
}

/// "nf4" or "fp4", from the name of a quant_state.
std::string_view kind_of(const TensorEntry& state) {
  return std::string_view(state.name).substr(state.name.size() - 3);
}

float float_at(std::span<const std::byte> stored, uint64_t index) {
  float value = 0;
  std::memcpy(&value, stored.data() + index * sizeof value, sizeof value);
  return value;
}

Error not_finite(std::string_view what, uint64_t index) {
  return {ErrorKind::invalid, fmt::format("{} {} is infinite or not a number", what, index)};
}

Error too_large(std::string_view what, uint64_t index) {
  return {ErrorKind::invalid, fmt::format("{} {} has values that are too large for FP32", what, index)};
}

/// The settings in `quant_state`.
struct QuantState {
  uint64_t block = 0;         // codes per factor
  uint64_t nested_block = 0;  // factors per outer factor; 0: factors are FP32
  float offset = 0;
};

Result<uint64_t> block_of(const Json& state, const char* key) {
  constexpr uint64_t kMax = 1U << 20;
  const auto size = state.find(key);
  if (size == state.end() || !size->is_number_unsigned() || *size < 1 || *size > kMax)
    return Error{ErrorKind::invalid, fmt::format("its quant_state has no \"{}\" from 1 to {}", key, kMax)};
  return size->get<uint64_t>();
}

/// Checks that a key, if present, has one of some texts. Errors: invalid.
Result<void> check_text(const Json& state, const char* key, std::initializer_list<std::string_view> texts) {
  const auto found = state.find(key);
  if (found == state.end()) return {};
  const bool known = std::ranges::any_of(texts, [&](std::string_view text) { return *found == text; });
  if (known) return {};
  return Error{ErrorKind::invalid,
               fmt::format(R"(its quant_state has a "{}" that is not {})", key, fmt::join(texts, " or "))};
}

Result<QuantState> read_state(const StoredPlane& plane, std::span<const std::byte> bytes) {
  const WeightForm& form = plane.form;
  const bool nested = plane.tensors.size() > kNestedMap;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto json = parse_json(text, kStateDocument);
  if (!json) return json.error().in("its quant_state");
  if (!json->is_object()) return Error{ErrorKind::invalid, "its quant_state is no JSON object"};
  if (const auto shape = json->find("shape"); shape == json->end() || *shape != Json{form.out, form.in}) {
    return Error{ErrorKind::invalid, fmt::format("its quant_state does not have the \"shape\" that config.json asks "
                                                 "for, [{}, {}]",
                                                 form.out, form.in)};
  }
  TRY(check_text(*json, "quant_type", {kind_of(*plane.tensors[kState])}));
  TRY(check_text(*json, "dtype", {"float32", "bfloat16", "float16"}));
  TRY(check_text(*json, "nested_dtype", {"float32"}));
  QuantState state;
  TRY_ASSIGN(state.block, block_of(*json, "blocksize"));
  if (!nested) return state;
  TRY_ASSIGN(state.nested_block, block_of(*json, "nested_blocksize"));
  const auto offset = json->find("nested_offset");
  if (offset == json->end() || !offset->is_number() || !std::isfinite(offset->get<float>()))
    return Error{ErrorKind::invalid, "its quant_state has no number \"nested_offset\""};
  state.offset = offset->get<float>();
  return state;
}

/// Reads FP32 numbers, each of which must be finite.
Result<std::vector<float>> read_floats(std::span<const std::byte> stored, std::string_view what) {
  std::vector<float> values(stored.size() / sizeof(float));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = float_at(stored, i);
    if (!std::isfinite(values[i])) return not_finite(what, i);
  }
  return values;
}

Result<std::vector<float>> read_factors(const QuantState& state, StoredBytes stored) {
  if (state.nested_block == 0) return read_floats(stored[kAbsmax], "absmax");
  TRY_ASSIGN(const auto map, read_floats(stored[kNestedMap], "nested_quant_map"));
  TRY_ASSIGN(const auto outer, read_floats(stored[kNestedAbsmax], "nested_absmax"));
  const std::span<const std::byte> codes = stored[kAbsmax];
  if (outer.size() != ceil_div(codes.size(), state.nested_block)) {
    return Error{ErrorKind::invalid, fmt::format("{} factors in blocks of {} have {} nested_absmax", codes.size(),
                                                 state.nested_block, outer.size())};
  }
  std::vector<float> factors(codes.size());
  for (size_t i = 0; i < factors.size(); ++i) {
    const float scaled = map[std::to_integer<size_t>(codes[i])] * outer[i / state.nested_block];
    factors[i] = scaled + state.offset;
  }
  return factors;
}

Result<void> decode_four_bits(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) {
  TRY_ASSIGN(const QuantState state, read_state(plane, stored[kState]));
  TRY_ASSIGN(const auto map, read_floats(stored[kMap], "quant_map"));
  TRY_ASSIGN(const auto factors, read_factors(state, stored));
  auto* values = reinterpret_cast<float*>(to.data());
  const uint64_t count = to.size() / sizeof(float);
  if (factors.size() != ceil_div(count, state.block)) {
    return Error{ErrorKind::invalid,
                 fmt::format("{} codes in blocks of {} have {} absmax", count, state.block, factors.size())};
  }
  const float largest = std::abs(*std::ranges::max_element(map, {}, [](float value) { return std::abs(value); }));
  for (uint64_t i = 0; i < factors.size(); ++i) {
    if (!std::isfinite(factors[i] * largest)) return too_large("block", i);
  }
  for (uint64_t i = 0; i < count; ++i) {
    const auto byte = std::to_integer<uint32_t>(stored[kWeight][i / 2]);
    values[i] = map[i % 2 == 0 ? byte >> 4 : byte & 0xf] * factors[i / state.block];
  }
  return {};
}

Result<void> decode_eight_bits(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) {
  auto* values = reinterpret_cast<float*>(to.data());
  for (uint64_t row = 0; row < plane.form.out; ++row) {
    const float largest = float_at(stored[1], row);
    if (!std::isfinite(largest)) return not_finite("SCB", row);
    if (!std::isfinite(largest * 128)) return too_large("row", row);
    for (uint64_t i = row * plane.form.in; i < (row + 1) * plane.form.in; ++i)
      values[i] = static_cast<float>(std::to_integer<int8_t>(stored[0][i])) * largest * kOver127;
  }
  return {};
}

Result<void> check_bits(const Checkpoint& checkpoint, const TensorEntry& weight, const MatrixRequest& request,
                        uint32_t bits) {
  if (request.stored.bits.value_or(bits) == bits) return {};
  return Error{ErrorKind::invalid, fmt::format("{} holds codes of {} bits where config.json says {}",
                                               place_of(checkpoint, weight), bits, *request.stored.bits)};
}

/// Checks that a tensor has this dtype and `count` values (0: any number). Errors: invalid.
Result<void> check_part(const Checkpoint& checkpoint, const TensorEntry& tensor, Dtype dtype, uint64_t count) {
  const bool fits = tensor.dtype == dtype && (count == 0 || tensor.range.size() == bytes_of(dtype, count));
  if (fits) return {};
  const std::string wanted = count == 0 ? std::string() : fmt::format(", {} of them", count);
  return Error{ErrorKind::invalid,
               fmt::format("{} is {} {}; it must be {}{}", place_of(checkpoint, tensor), to_string(tensor.dtype),
                           shown_shape(tensor.shape), to_string(dtype), wanted)};
}

StoredMatrix decoded_matrix(const TensorEntry& weight, const MatrixRequest& request, decltype(StoredPlane::make) make) {
  StoredMatrix matrix{.form = {.coding = Coding::f32, .out = request.out, .in = request.in}, .planes = {}};
  matrix.planes[kCodes] = plane_of(weight, matrix.form, kCodes);
  matrix.planes[kCodes].make = make;
  return matrix;
}

/// Checked before names are composed: most weights are of another type.
bool is_of_type(const Checkpoint& checkpoint, std::string_view name, Dtype dtype) {
  const auto weight = find_tensor(checkpoint, name);
  return weight && (*weight)->dtype == dtype;
}

bool stores_four_bits(const Checkpoint& checkpoint, std::string_view name) {
  if (!is_of_type(checkpoint, name, Dtype::u8)) return false;
  return beside(checkpoint, name, ".quant_map") != nullptr || beside(checkpoint, name, ".absmax") != nullptr;
}

Result<StoredMatrix> find_four_bits(const Checkpoint& checkpoint, const MatrixRequest& request) {
  TRY_ASSIGN(const auto* weight, find_tensor(checkpoint, request.name));
  const std::string name(request.name);
  TRY_ASSIGN(const auto* state, find_state(checkpoint, name));
  TRY_ASSIGN(const auto* map, find_tensor(checkpoint, name + ".quant_map"));
  TRY_ASSIGN(const auto* absmax, find_tensor(checkpoint, name + ".absmax"));
  TRY(check_bits(checkpoint, *weight, request, 4));
  TRY(check_part(checkpoint, *weight, Dtype::u8, ceil_div(uint64_t{request.out} * request.in, 2)));
  TRY(check_part(checkpoint, *map, Dtype::f32, kFourBitCodes));
  TRY(check_part(checkpoint, *state, Dtype::u8, 0));
  if (state->range.size() > kStateDocument.bytes) {
    return Error{ErrorKind::invalid,
                 fmt::format("{} has {}, more than the {} that a quant_state may have", place_of(checkpoint, *state),
                             size_words(state->range.size()), size_words(kStateDocument.bytes))};
  }
  if (request.stored.four_bits.value_or(kind_of(*state)) != kind_of(*state)) {
    return Error{ErrorKind::invalid, fmt::format("{} where config.json says \"bnb_4bit_quant_type\": \"{}\"",
                                                 place_of(checkpoint, *state), *request.stored.four_bits)};
  }
  StoredMatrix matrix = decoded_matrix(*weight, request, decode_four_bits);
  auto& tensors = matrix.planes[kCodes].tensors;
  tensors.insert(tensors.end(), {state, map, absmax});
  if (absmax->dtype != Dtype::u8) {
    TRY(check_part(checkpoint, *absmax, Dtype::f32, 0));
    for (const std::string_view part : {".nested_absmax", ".nested_quant_map"}) {
      if (const auto* nested = beside(checkpoint, name, part); nested != nullptr) {
        return Error{ErrorKind::invalid, fmt::format("{} is there, but {} is F32, which has no need of it",
                                                     place_of(checkpoint, *nested), absmax->name)};
      }
    }
    return matrix;
  }
  TRY_ASSIGN(const auto* nested_absmax, find_tensor(checkpoint, name + ".nested_absmax"));
  TRY_ASSIGN(const auto* nested_map, find_tensor(checkpoint, name + ".nested_quant_map"));
  TRY(check_part(checkpoint, *nested_absmax, Dtype::f32, 0));
  TRY(check_part(checkpoint, *nested_map, Dtype::f32, kNestedCodes));
  tensors.insert(tensors.end(), {nested_absmax, nested_map});
  return matrix;
}

bool stores_eight_bits(const Checkpoint& checkpoint, std::string_view name) {
  return is_of_type(checkpoint, name, Dtype::i8) && beside(checkpoint, module_of(name), "SCB") != nullptr;
}

/// Format 0 has plain rows; the others were permuted for one kernel.
Result<void> check_row_format(const StoredPlane& /*plane*/, StoredBytes stored) {
  if (stored[2][0] == std::byte{0}) return {};
  return Error{ErrorKind::unsupported, fmt::format("its weight_format is {}; only 0, rows as they stand, can be run",
                                                   std::to_integer<int>(stored[2][0]))};
}

Result<StoredMatrix> find_eight_bits(const Checkpoint& checkpoint, const MatrixRequest& request) {
  TRY_ASSIGN(const auto* weight, find_tensor(checkpoint, request.name, {request.out, request.in}));
  const auto* largest = beside(checkpoint, module_of(request.name), "SCB");
  TRY(check_bits(checkpoint, *weight, request, 8));
  TRY(check_part(checkpoint, *weight, Dtype::i8, 0));
  TRY(check_part(checkpoint, *largest, Dtype::f32, request.out));
  StoredMatrix matrix = decoded_matrix(*weight, request, decode_eight_bits);
  StoredPlane& plane = matrix.planes[kCodes];
  plane.tensors.push_back(largest);
  if (const auto* order = beside(checkpoint, module_of(request.name), "weight_format"); order != nullptr) {
    TRY(check_part(checkpoint, *order, Dtype::u8, 1));
    plane.tensors.push_back(order);
    plane.check = check_row_format;
  }
  return matrix;
}

Result<MatrixShape> four_bit_shape(const Checkpoint& checkpoint, std::string_view name,
                                   const Quantization& /*stored*/) {
  TRY_ASSIGN(const auto* weight, find_tensor(checkpoint, name));
  return Error{ErrorKind::unsupported,
               fmt::format("{} is of bitsandbytes' four bits, whose shape is in the bytes of its quant_state; dsrun "
                           "runs it as it is",
                           place_of(checkpoint, *weight))};
}

Result<MatrixShape> eight_bit_shape(const Checkpoint& checkpoint, std::string_view name,
                                    const Quantization& /*stored*/) {
  TRY_ASSIGN(const auto* weight, find_tensor(checkpoint, name));
  return shape_of_codes(checkpoint, *weight, 1);
}

}  // namespace

WeightFormat bitsandbytes_four_bit_format() {
  return {.description = "bitsandbytes' nf4 and fp4",
          .suffixes = kFourSuffixes,
          .stores = stores_four_bits,
          .find = find_four_bits,
          .scaled = {},
          .shape = four_bit_shape};
}

WeightFormat bitsandbytes_int8_format() {
  return {.description = "bitsandbytes' int8",
          .suffixes = kEightSuffixes,
          .stores = stores_eight_bits,
          .find = find_eight_bits,
          .scaled = {},
          .shape = eight_bit_shape};
}

}  // namespace dspack::format
