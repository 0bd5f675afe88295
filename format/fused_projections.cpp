#include "format/fused_projections.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace dspack::format {
namespace {

constexpr std::string_view kGateUp = "gate_up_proj";
constexpr std::string_view kDown = "down_proj";

/// The suffix after a projection's name: in a fused tensor's name, and in that of a separate matrix.
struct Suffix {
  std::string_view fused;
  std::string_view own;
};
constexpr std::array<Suffix, 3> kSuffixes = {
    {{"", ".weight"}, {"_scale_inv", ".weight_scale_inv"}, {"_scale", ".weight_scale"}}};

std::string_view last_word(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

const TensorEntry* find_word(std::span<const TensorEntry* const> expert, std::string_view word) {
  const auto found =
      std::ranges::find_if(expert, [&](const TensorEntry* tensor) { return last_word(tensor->name) == word; });
  return found == expert.end() ? nullptr : *found;
}

bool lie_upright(const TensorEntry* gate_up, const TensorEntry* down) {
  if (gate_up == nullptr || down == nullptr || gate_up->shape.size() != 2 || down->shape.size() != 2) return false;
  return gate_up->shape[0] % 2 == 0 && gate_up->shape[0] / 2 == down->shape[1] && gate_up->shape[1] == down->shape[0];
}

uint64_t count_of(const TensorEntry& tensor) {
  uint64_t count = 1;
  for (const uint64_t length : tensor.shape)
    count *= length;
  return count;
}

/// The tensor under another name; its digest is not known.
TensorEntry renamed(const TensorEntry& tensor, std::string_view projection, std::string_view suffix) {
  TensorEntry entry = tensor;
  entry.name.resize(entry.name.size() - last_word(entry.name).size());
  entry.name.append(projection).append(suffix);
  entry.digest.reset();
  return entry;
}

/// Adds gate and up; a scale of the whole tensor is added twice.
void add_halves(const TensorEntry& tensor, std::string_view suffix, std::vector<TensorEntry>& into) {
  TensorEntry gate = renamed(tensor, "gate_proj", suffix);
  TensorEntry up = renamed(tensor, "up_proj", suffix);
  if (count_of(tensor) == 1) {
    gate.shape.clear();
    up.shape.clear();
  } else {
    if (tensor.shape.empty() || tensor.shape[0] % 2 != 0) return;  // a block spans both: no scale is added
    gate.shape[0] = up.shape[0] = tensor.shape[0] / 2;
    gate.range.end = up.range.begin = tensor.range.begin + tensor.range.size() / 2;
  }
  into.push_back(std::move(gate));
  into.push_back(std::move(up));
}

}  // namespace

std::vector<TensorEntry> projections_within(std::span<const TensorEntry* const> expert) {
  std::vector<TensorEntry> matrices;
  if (!lie_upright(find_word(expert, kGateUp), find_word(expert, kDown))) return matrices;
  for (const Suffix& suffix : kSuffixes) {
    if (const auto* both = find_word(expert, std::string(kGateUp).append(suffix.fused)); both != nullptr)
      add_halves(*both, suffix.own, matrices);
    if (const auto* down = find_word(expert, std::string(kDown).append(suffix.fused)); down != nullptr) {
      TensorEntry& entry = matrices.emplace_back(renamed(*down, kDown, suffix.own));
      if (count_of(entry) == 1) entry.shape.clear();
    }
  }
  return matrices;
}

}  // namespace dspack::format
