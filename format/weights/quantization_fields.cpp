#include "format/weights/quantization_fields.h"

#include <algorithm>
#include <array>

namespace dspack::format {

namespace {

// Parts of keys about weights that were modified, or whose scales are coded themselves.
constexpr std::array<std::string_view, 9> kChangesMeaning = {"rotat",  "hadamard", "transform",  "quarot", "spinquant",
                                                             "permut", "sparsity", "super_bits", "adapter"};

// Keys that change the meaning of codes, if the method does not read them.
constexpr std::array<std::string_view, 4> kOfCodes = {"bits", "sym", "symmetric", "zero_point"};

bool says_nothing(const Json& value) {
  return value.is_null() || value == false || value == 0 || value == "" || value == "none" ||
         (value.is_structured() && value.empty());
}

bool changes_meaning(std::string_view name) {
  return std::ranges::any_of(kChangesMeaning,
                             [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

// Whether a value is about such weights, by a key or the name of an algorithm. The parser bounds the depth of JSON.
bool speaks_of_change(const std::string& key, const Json& value) {
  if (says_nothing(value)) return false;
  if (changes_meaning(key)) return true;
  if (value.is_string()) return key == "name" && changes_meaning(value.get<std::string>());
  if (!value.is_structured()) return false;
  const auto items = value.items();
  return std::any_of(items.begin(), items.end(),
                     [](const auto& item) { return speaks_of_change(item.key(), item.value()); });
}

}  // namespace

std::optional<BlockSize> read_block(ConfigFields& fields, std::string_view key) {
  const Json* block = fields.find(key);
  if (block == nullptr) return std::nullopt;
  const auto good = [](const Json& size) {
    return size.is_number_unsigned() && size.get<uint64_t>() >= 1 && size.get<uint64_t>() <= kMaxBlock;
  };
  if (!block->is_array() || block->size() != 2 || !good((*block)[0]) || !good((*block)[1])) {
    fields.fail(ErrorKind::invalid, key, "expected two whole numbers, as in [128, 128]");
    return std::nullopt;
  }
  return BlockSize{.out = (*block)[0].get<uint32_t>(), .in = (*block)[1].get<uint32_t>()};
}

std::optional<uint32_t> read_group_size(ConfigFields& fields) {
  const Json* size = fields.find("group_size");
  if (size == nullptr || *size == -1) return std::nullopt;
  return fields.integer("group_size", 1, kMaxBlock);
}

void only(ConfigFields& fields, std::string_view key, const Json& value) {
  const Json* found = fields.find(key);
  if (found != nullptr && *found != value)
    fields.fail(ErrorKind::unsupported, key, "only " + value.dump() + " can be run");
}

void pass_over(ConfigFields& fields, std::span<const std::string_view> without_effect,
               std::vector<std::string>& notes) {
  for (const std::string& key : fields.others(without_effect)) {
    const Json& value = *fields.find(key);
    if (std::ranges::find(kOfCodes, key) != kOfCodes.end())
      fields.fail(ErrorKind::unsupported, key, "it says what codes mean, and is not known with this quant_method");
    if (says_nothing(value)) continue;
    if (speaks_of_change(key, value)) {
      fields.fail(ErrorKind::unsupported, key,
                  "weights that are rotated, permuted, sparse or otherwise transformed cannot be run");
      return;
    }
    notes.push_back(fields.described(key) + "; this program does not know the key, and goes by the tensors");
  }
}

}  // namespace dspack::format
