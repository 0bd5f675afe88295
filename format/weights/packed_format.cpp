#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "format/base/size.h"
#include "format/weights/weight_format.h"

namespace dspack::format {

namespace {

// Integers of 4 or 8 bits in I32 words, row by row, the first in the lowest bits, each stored as its value plus half of
// the range; weight_shape [2] holds the shape before packing; zero points are packed down the rows (compressed-tensors,
// compressors/pack_quantized: "pack-quantized"). Little-endian words are the bytes of the row.
constexpr std::array<std::string_view, 5> kPackedSuffixes = {"weight_packed", "weight_scale", "weight_shape",
                                                             "weight_zero_point", "weight_g_idx"};
constexpr std::array<ScaledCodes, 1> kPackedScaled = {{
    {.ending = ".weight_packed", .dtype = Dtype::i32, .name = "packed integers", .scale = "weight_scale"},
}};
constexpr uint32_t kWordBits = 32;

/// Integers per word.
constexpr uint32_t in_word(uint32_t bits) {
  return kWordBits / bits;
}

/// Integer `index` of a row of words as it is stored, unsigned.
int32_t integer_at(std::span<const std::byte> words, uint64_t index, uint32_t bits) {
  const auto byte = std::to_integer<int32_t>(words[index * bits / 8]);
  return bits == 8 ? byte : byte >> (index % 2 * 4) & 0xf;
}

/// weight_shape [2]: I64 as compressed-tensors writes it, or I32 as in Moonshot's releases.
Result<void> check_shape(const WeightForm& form, const TensorEntry& tensor, std::span<const std::byte> stored) {
  std::array<int64_t, 2> shape{};
  if (tensor.dtype == Dtype::i32) {
    std::array<int32_t, 2> narrow{};
    std::memcpy(narrow.data(), stored.data(), sizeof narrow);
    std::ranges::copy(narrow, shape.begin());
  } else {
    std::memcpy(shape.data(), stored.data(), sizeof shape);
  }
  if (shape[0] == form.out && shape[1] == form.in) return {};
  return Error{ErrorKind::invalid, fmt::format("weight_shape says [{}, {}] where [{}, {}] is expected", shape[0],
                                               shape[1], form.out, form.in)};
}

/// weight_g_idx [in], the group of each column: it must be the one given by the column's position.
Result<void> check_order(const WeightForm& form, std::span<const std::byte> stored) {
  for (uint32_t column = 0; column < form.in; ++column) {
    int32_t group = 0;
    std::memcpy(&group, stored.data() + column * sizeof group, sizeof group);
    if (group == static_cast<int32_t>(column / form.block_in)) continue;
    return Error{ErrorKind::unsupported,
                 fmt::format("weight_g_idx puts column {} into group {}; columns whose groups are given one by one "
                             "(actorder \"group\") cannot be run",
                             column, group)};
  }
  return {};
}

/// Checks tensors that repeat what the shapes of codes and scales already determine.
Result<void> check_described(const StoredPlane& plane, StoredBytes stored) {
  for (size_t i = 1; i < plane.tensors.size(); ++i) {
    const TensorEntry& tensor = *plane.tensors[i];
    if (tensor.name.ends_with(".weight_shape")) TRY(check_shape(plane.form, tensor, stored[i]));
    if (tensor.name.ends_with(".weight_g_idx")) TRY(check_order(plane.form, stored[i]));
  }
  return {};
}

/// Turns rows of whole words into rows of whole bytes.
Result<void> join_rows(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) {
  const uint64_t row = code_bytes(plane.form.coding, plane.form.in);
  const uint64_t stored_row = stored[0].size() / plane.form.out;
  for (uint64_t i = 0; i < plane.form.out; ++i)
    std::memcpy(to.data() + i * row, stored[0].data() + i * stored_row, row);
  return {};
}

/// Turns eight-bit values plus half of the range into two's complement.
Result<void> sign_bytes(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) {
  constexpr uint64_t kHalves = 0x8080808080808080;
  const uint64_t stored_row = stored[0].size() / plane.form.out;
  for (uint64_t i = 0; i < plane.form.out; ++i) {
    const std::byte* const from = stored[0].data() + i * stored_row;
    std::byte* const row = to.data() + i * plane.form.in;
    uint64_t column = 0;
    for (; column + sizeof kHalves <= plane.form.in; column += sizeof kHalves) {
      uint64_t eight = 0;
      std::memcpy(&eight, from + column, sizeof eight);
      eight ^= kHalves;
      std::memcpy(row + column, &eight, sizeof eight);
    }
    for (; column < plane.form.in; ++column)
      row[column] = from[column] ^ std::byte{0x80};
  }
  return {};
}

/// Bits per integer, by the words of a row; 0: neither 4 nor 8 fits.
uint32_t bits_of_row(uint64_t words, uint32_t in, std::optional<uint32_t> said) {
  for (const uint32_t bits : {4U, 8U}) {
    if (ceil_div(in, in_word(bits)) == words && said.value_or(bits) == bits) return bits;
  }
  return 0;
}

/// Packed zero points, n rows per word: word r / n of a column of words holds that of row r.
struct ZeroPoints {
  std::span<const std::byte> words;
  uint64_t groups = 0;
  uint32_t bits = 0;

  [[nodiscard]] int32_t of(uint64_t row, uint64_t group) const {
    const uint64_t word = row / in_word(bits) * groups + group;
    return integer_at(words.subspan(word * sizeof(uint32_t), sizeof(uint32_t)), row % in_word(bits), bits);
  }
};

/// Turns zero points of four bits into bytes, row by row.
Result<void> turn_zeros(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) {
  const uint64_t groups = ceil_div(plane.form.in, plane.form.block_in);
  const ZeroPoints zeros{.words = stored[0], .groups = groups, .bits = 4};
  for (uint64_t i = 0; i < to.size(); ++i)
    to[i] = static_cast<std::byte>(zeros.of(i / groups, i % groups));
  return {};
}

/// Turns codes of eight bits into their differences from the zero points.
Result<void> subtract_zeros(const StoredPlane& plane, StoredBytes stored, std::span<std::byte> to) {
  const WeightForm& form = plane.form;
  const uint64_t stored_row = stored[0].size() / form.out;
  const ZeroPoints zeros{.words = stored[1], .groups = ceil_div(form.in, form.block_in), .bits = 8};
  for (uint64_t row = 0; row < form.out; ++row) {
    const auto codes = stored[0].subspan(row * stored_row, stored_row);
    for (uint64_t column = 0; column < form.in; ++column) {
      const int32_t value = integer_at(codes, column, 8) - zeros.of(row, column / form.block_in);
      store_difference(to, row * form.in + column, value);
    }
  }
  return {};
}

Error contradiction(const Checkpoint& checkpoint, const TensorEntry& tensor, std::string_view what) {
  return {ErrorKind::invalid, fmt::format("{} {}; config.json says otherwise", place_of(checkpoint, tensor), what)};
}

bool stores_packed(const Checkpoint& checkpoint, std::string_view name) {
  const auto tensor = find_tensor(checkpoint, module_of(name) + "weight_packed");
  return tensor && (*tensor)->dtype == Dtype::i32;
}

/// Adds the zero points of four-bit codes as a plane; those of eight-bit codes are subtracted from the codes.
Result<void> add_zeros(const Checkpoint& checkpoint, const TensorEntry& zeros, uint32_t bits, StoredMatrix& matrix) {
  WeightForm& form = matrix.form;
  const uint64_t groups = ceil_div(form.in, form.block_in);
  if (zeros.dtype != Dtype::i32 || zeros.shape != std::vector<uint64_t>{ceil_div(form.out, in_word(bits)), groups}) {
    return Error{ErrorKind::invalid,
                 fmt::format("{}: zero points {} {} do not fit a weight [{}, {}] of {} bits in groups of {}",
                             place_of(checkpoint, zeros), to_string(zeros.dtype), shown_shape(zeros.shape), form.out,
                             form.in, bits, form.block_in)};
  }
  if (bits == 4) {
    matrix.planes[kZeros] = plane_of(zeros, form, kZeros);
    matrix.planes[kZeros].make = turn_zeros;
    return {};
  }
  StoredPlane& codes = matrix.planes[kCodes];
  codes.tensors.push_back(&zeros);
  codes.make = subtract_zeros;
  return {};
}

Result<StoredMatrix> find_packed(const Checkpoint& checkpoint, const MatrixRequest& request) {
  const std::string module = module_of(request.name);
  TRY_ASSIGN(const auto* packed, find_tensor(checkpoint, module + "weight_packed"));
  const auto beside = [&](std::string_view part) {
    const auto found = find_tensor(checkpoint, module + std::string(part));
    return found ? *found : nullptr;
  };
  const auto* order = beside("weight_g_idx");
  const bool is_listed =
      order != nullptr && order->dtype == Dtype::i32 && order->shape == std::vector<uint64_t>{request.in};
  if (request.stored.ordered.value_or(false) || (order != nullptr && !is_listed)) {
    return Error{ErrorKind::unsupported,
                 fmt::format("{}: columns whose groups are given one by one (actorder \"group\") cannot be run",
                             place_of(checkpoint, order == nullptr ? *packed : *order))};
  }
  const bool is_matrix = packed->shape.size() == 2 && packed->shape[0] == request.out;
  const uint32_t bits = is_matrix ? bits_of_row(packed->shape[1], request.in, request.stored.bits) : 0;
  if (bits == 0) {
    const std::string said = request.stored.bits ? fmt::format(" of {} bits", *request.stored.bits) : "";
    return Error{ErrorKind::invalid,
                 fmt::format("{} has shape {} where config.json asks for {} x {} integers{}",
                             place_of(checkpoint, *packed), shown_shape(packed->shape), request.out, request.in, said)};
  }
  TRY(check_scales(checkpoint, *packed));
  const auto* zeros = beside("weight_zero_point");
  const bool is_symmetric = request.stored.symmetric.value_or(zeros == nullptr);
  if (is_symmetric && zeros != nullptr) return contradiction(checkpoint, *zeros, "holds zero points");
  if (!is_symmetric && zeros == nullptr) return contradiction(checkpoint, *packed, "has no weight_zero_point");
  const Coding coding = bits == 4          ? zeros == nullptr ? Coding::i4 : Coding::u4
                        : zeros == nullptr ? Coding::i8
                                           : Coding::bf16;
  StoredMatrix matrix{.form = {.coding = coding, .out = request.out, .in = request.in}, .planes = {}};
  TRY(add_group_scales(checkpoint, *checkpoint.find_scale(packed->name), request.stored, std::nullopt, matrix));
  StoredPlane& codes = matrix.planes[kCodes];
  codes = plane_of(*packed, matrix.form, kCodes);
  if (bits == 4 && packed->range.size() != codes.bytes) codes.make = join_rows;
  if (bits == 8 && zeros == nullptr) codes.make = sign_bytes;
  if (zeros != nullptr) TRY(add_zeros(checkpoint, *zeros, bits, matrix));
  if (const auto* shape = beside("weight_shape"); shape != nullptr) {
    if ((shape->dtype != Dtype::i64 && shape->dtype != Dtype::i32) || shape->shape != std::vector<uint64_t>{2})
      return Error{ErrorKind::invalid, fmt::format("{} is no shape of a matrix", place_of(checkpoint, *shape))};
    codes.tensors.push_back(shape);
    codes.check = check_described;
  }
  if (order != nullptr) {
    codes.tensors.push_back(order);
    codes.check = check_described;
  }
  return matrix;
}

/// Bits per integer: those of config.json, else the only ones by which `words` of a row fill its groups of columns.
std::optional<uint32_t> bits_of_groups(uint64_t words, const TensorEntry* scales, const Quantization& stored) {
  if (stored.bits || !stored.group || scales == nullptr || scales->shape.size() != 2) return stored.bits;
  std::optional<uint32_t> found;
  for (const uint32_t bits : {4U, 8U}) {
    const auto columns = checked_mul(words, in_word(bits));
    if (!columns || ceil_div(*columns, *stored.group) != scales->shape[1]) continue;
    if (found) return std::nullopt;
    found = bits;
  }
  return found;
}

Result<MatrixShape> packed_shape(const Checkpoint& checkpoint, std::string_view name, const Quantization& stored) {
  TRY_ASSIGN(const auto* packed, find_tensor(checkpoint, module_of(name) + "weight_packed"));
  const uint64_t words = packed->shape.size() == 2 ? packed->shape[1] : 0;
  if (const auto bits = bits_of_groups(words, checkpoint.find_scale(packed->name), stored))
    return shape_of_codes(checkpoint, *packed, in_word(*bits));
  return Error{ErrorKind::unsupported,
               fmt::format("{}: neither config.json (\"num_bits\") nor the scales say how many bits an integer has",
                           place_of(checkpoint, *packed))};
}

}  // namespace

WeightFormat packed_format() {
  return {.description = "packed integers of 4 and 8 bits",
          .suffixes = kPackedSuffixes,
          .codes = "weight_packed",
          .stores = stores_packed,
          .find = find_packed,
          .scaled = kPackedScaled,
          .shape = packed_shape};
}

}  // namespace dspack::format
