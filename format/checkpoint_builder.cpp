#include "format/checkpoint_builder.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "format/base/size.h"
#include "format/json.h"

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

constexpr size_t kShownPatterns = 3;

bool is_number(std::string_view component) {
  return !component.empty() && component.find_first_not_of("0123456789") == std::string_view::npos;
}

/// The name with N for each number, so that tensors which differ only in numbers share a pattern.
std::string pattern_of(std::string_view name) {
  std::string pattern;
  while (true) {
    const std::string_view component = name.substr(0, name.find('.'));
    pattern += is_number(component) ? "N" : component;
    if (component.size() == name.size()) return pattern;
    pattern += '.';
    name.remove_prefix(component.size() + 1);
  }
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

std::optional<std::string> unknown_experts(std::span<const TensorEntry> tensors) {
  uint64_t count = 0;
  std::map<std::string, std::string_view> examples;  // by pattern
  for (const TensorEntry& tensor : tensors) {
    if (tensor.place.role != Role::other || tensor.name.find("expert") == std::string::npos) continue;
    if (const auto fused = parse_fused_name(tensor.name); fused && fused->projection) continue;
    ++count;
    examples.emplace(pattern_of(tensor.name), tensor.name);
  }
  if (count == 0) return std::nullopt;
  std::vector<std::string> shown;
  for (const auto& [pattern, example] : examples) {
    if (shown.size() == kShownPatterns) break;
    shown.push_back(pattern == example ? fmt::format("\"{}\"", example)
                                       : fmt::format("\"{}\" (such as \"{}\")", pattern, example));
  }
  const size_t more = examples.size() - shown.size();
  return fmt::format("{} tensor{} of experts and {} of no known family: {}{}", count,
                     count == 1 ? " speaks" : "s speak", count == 1 ? "has a name" : "have names",
                     fmt::join(shown, ", "), more == 0 ? "" : fmt::format(" and {} more kinds", more));
}

void CheckpointBuilder::expect(size_t tensors) {
  checkpoint_.tensors_.reserve(tensors);
  checkpoint_.by_name_.reserve(tensors);
}

Result<void> CheckpointBuilder::add_shard(Shard shard, const FusedExperts& fused) {
  TRY(count(shard.file.size_bytes, shard.file.path));
  for (TensorInfo& tensor : shard.header.tensors) {
    auto slices = fused.split(tensor);
    if (!slices) {
      TRY(add_stored(std::move(tensor), shard));
      continue;
    }
    checkpoint_.fused_.push_back({.name = std::move(tensor.name),
                                  .file = narrow<uint32_t>(checkpoint_.files_.size()),
                                  .first = narrow<uint32_t>(checkpoint_.tensors_.size()),
                                  .slices = narrow<uint32_t>(slices->size())});
    for (TensorInfo& slice : *slices)
      TRY(add_stored(std::move(slice), shard));
  }
  checkpoint_.files_.push_back(std::move(shard.file));
  return {};
}

Result<void> CheckpointBuilder::add_packed(const PackedFile& packed, const Layout& layout) {
  TRY(count(packed.size_bytes, packed.path));
  const auto file = narrow<uint32_t>(checkpoint_.files_.size());
  const size_t first = checkpoint_.tensors_.size();
  for (size_t i = 0; i < layout.tensors.size(); ++i) {
    const LayoutTensor& tensor = layout.tensors[i];
    TensorEntry entry{.name = tensor_name(packed, tensor),
                      .place = {},
                      .dtype = tensor.dtype,
                      .shape = tensor.shape,
                      .file = file,
                      .range = {packed.data_start + tensor.data.begin, packed.data_start + tensor.data.end},
                      .digest = packed.tensors[i]};
    TRY(add(std::move(entry), packed.path));
  }
  checkpoint_.files_.push_back({.path = packed.path,
                                .size_bytes = packed.size_bytes,
                                .data_start = packed.data_start,
                                .version = {},
                                .header = {}});
  return check_experts(packed, std::span(checkpoint_.tensors_).subspan(first));
}

Result<void> CheckpointBuilder::check_index(const Index& index) {
  std::unordered_map<std::string_view, uint32_t> fused;  // name -> file
  for (const FusedTensor& tensor : checkpoint_.fused_)
    fused.emplace(tensor.name, tensor.file);
  for (const auto& [name, number] : index.weight_map) {
    const std::string& path = index.files[number];
    const TensorEntry* entry = checkpoint_.find(name);
    const auto whole = entry == nullptr ? fused.find(name) : fused.end();
    const bool found = entry != nullptr || whole != fused.end();
    if (!found || checkpoint_.files_[entry != nullptr ? entry->file : whole->second].path != path) {
      return Error{
          ErrorKind::invalid,
          fmt::format("tensor \"{}\" should be in {}, which does not hold it; fetch the index and that file again",
                      name, path)};
    }
  }
  return {};
}

Result<void> CheckpointBuilder::add_made(TensorEntry entry) {
  TRY(count(entry.range.size(), entry.name));
  const auto [known, added] = checkpoint_.by_name_.emplace(entry.name, narrow<uint32_t>(checkpoint_.tensors_.size()));
  if (!added) return Error{ErrorKind::invalid, fmt::format("tensor \"{}\" would be made twice", entry.name)};
  checkpoint_.tensors_.push_back(std::move(entry));
  return {};
}

Result<void> CheckpointBuilder::add_known(std::vector<CheckpointFile> files, std::vector<TensorEntry> tensors,
                                          Manifest manifest) {
  for (const CheckpointFile& file : files)
    TRY(count(file.size_bytes, file.path));
  checkpoint_.files_ = std::move(files);
  expect(tensors.size());
  for (TensorEntry& tensor : tensors) {
    DSPACK_CHECK(tensor.file < checkpoint_.files_.size(), "a tensor of a file that is not among the files");
    const std::string& path = checkpoint_.files_[tensor.file].path;
    TRY(add(std::move(tensor), path));
  }
  checkpoint_.manifest_ = std::move(manifest);
  return {};
}

void CheckpointBuilder::warn(std::string warning) {
  checkpoint_.warnings_.push_back(std::move(warning));
}

void CheckpointBuilder::doubt_experts(std::optional<std::string> doubt) {
  if (!doubt) return;
  checkpoint_.warnings_.push_back(*doubt);
  checkpoint_.expert_doubts_.push_back(std::move(*doubt));
}

Checkpoint CheckpointBuilder::finish() {
  for (uint32_t i = 0; i < checkpoint_.tensors_.size(); ++i) {
    const TensorName& place = checkpoint_.tensors_[i].place;
    if (place.expert) checkpoint_.experts_[{*place.layer, *place.expert}].push_back(i);
  }
  for (auto& [key, tensors] : checkpoint_.experts_) {
    std::sort(tensors.begin(), tensors.end(),
              [this](uint32_t a, uint32_t b) { return checkpoint_.tensors_[a].name < checkpoint_.tensors_[b].name; });
  }
  find_matrices_within();
  return std::move(checkpoint_);
}

void CheckpointBuilder::find_matrices_within() {
  for (const auto& [key, tensors] : checkpoint_.experts_) {
    std::vector<const TensorEntry*> expert;
    expert.reserve(tensors.size());
    for (const uint32_t number : tensors)
      expert.push_back(&checkpoint_.tensors_[number]);
    for (TensorEntry& matrix : projections_within(expert)) {
      checkpoint_.within_by_name_.emplace(matrix.name, narrow<uint32_t>(checkpoint_.within_.size()));
      checkpoint_.within_.push_back(std::move(matrix));
    }
  }
}

Result<void> CheckpointBuilder::set_manifest(Manifest manifest) {
  size_t tensors = 0;
  for (const PackedFile& file : manifest.files)
    tensors += manifest.layouts[file.layout].tensors.size();
  if (tensors > kMaxTensors) {
    return Error{ErrorKind::budget, fmt::format("names {} tensors; at most {} are read", tensors, kMaxTensors)};
  }
  expect(tensors);
  for (const PackedFile& file : manifest.files)
    TRY(add_packed(file, manifest.layouts[file.layout]));
  for (const auto& [name, target] : manifest.aliases)
    TRY(add_alias(name, target));
  checkpoint_.manifest_ = std::move(manifest);
  return {};
}

Result<void> CheckpointBuilder::check_experts(const PackedFile& packed, std::span<const TensorEntry> tensors) {
  std::vector<bool> present(packed.experts.size());
  for (const TensorEntry& tensor : tensors) {
    if (!tensor.place.expert) continue;
    const auto expert = find_expert(packed, {*tensor.place.layer, *tensor.place.expert});
    if (!expert) {
      return Error{ErrorKind::invalid, fmt::format("{}: tensor \"{}\" is of an expert that the file does not list",
                                                   packed.path, tensor.name)};
    }
    present[*expert] = true;
  }
  const auto missing = std::find(present.begin(), present.end(), false);
  if (missing == present.end()) return {};
  const ExpertKey key = packed.experts[static_cast<size_t>(missing - present.begin())].key;
  return Error{ErrorKind::invalid, fmt::format("{}: lists layer {}, expert {} and holds none of its tensors",
                                               packed.path, layer_text(key.layer), key.expert.value)};
}

Result<void> CheckpointBuilder::add_alias(const std::string& name, const std::string& target) {
  const auto found = checkpoint_.by_name_.find(target);
  if (found == checkpoint_.by_name_.end() || checkpoint_.tensors_[found->second].is_alias) {
    return Error{ErrorKind::invalid, fmt::format("alias \"{}\" stands for \"{}\", which no file holds", name, target)};
  }
  TensorEntry entry = checkpoint_.tensors_[found->second];
  if (entry.place.expert) {
    return Error{ErrorKind::invalid, fmt::format("alias \"{}\" stands for a tensor of an expert", name)};
  }
  entry.name = name;
  entry.is_alias = true;
  TRY(count(entry.range.size(), name));  // sums over all tensors, aliases included, must not overflow
  const std::string& path = checkpoint_.files_[entry.file].path;
  return add(std::move(entry), path);
}

Result<void> CheckpointBuilder::count(uint64_t size_bytes, const std::string& path) {
  const std::optional<uint64_t> total = checked_add(total_bytes_, size_bytes);
  if (!total || *total > kMaxSizeBytes) {
    return Error{ErrorKind::invalid, fmt::format("{}: claims {} bytes, which is no size of a file", path, size_bytes)};
  }
  total_bytes_ = *total;
  return {};
}

Result<void> CheckpointBuilder::add_stored(TensorInfo tensor, const Shard& shard) {
  const uint64_t start = shard.header.data_start;
  TensorEntry entry{.name = std::move(tensor.name),
                    .place = {},
                    .dtype = tensor.dtype,
                    .shape = std::move(tensor.shape),
                    .file = narrow<uint32_t>(checkpoint_.files_.size()),
                    .range = {start + tensor.data.begin, start + tensor.data.end},
                    .digest = {}};
  return add(std::move(entry), shard.file.path);
}

Result<void> CheckpointBuilder::add(TensorEntry entry, const std::string& path) {
  const auto number = narrow<uint32_t>(checkpoint_.tensors_.size());
  const auto [known, added] = checkpoint_.by_name_.emplace(entry.name, number);
  if (!added) {
    // A file that is not in files_ yet is the one being added.
    const uint32_t other = checkpoint_.tensors_[known->second].file;
    const std::string& first = other < checkpoint_.files_.size() ? checkpoint_.files_[other].path : path;
    return Error{ErrorKind::invalid, fmt::format("tensor \"{}\" is in both {} and {}", entry.name, first, path)};
  }
  entry.place = parse_tensor_name(entry.name);
  checkpoint_.tensors_.push_back(std::move(entry));
  return {};
}

}  // namespace dspack::format
