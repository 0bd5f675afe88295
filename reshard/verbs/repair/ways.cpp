#include "reshard/verbs/repair/ways.h"

#include <unordered_map>

#include <fmt/format.h>

namespace dspack::reshard {
namespace {

using format::TensorEntry;

/// The missing tensors by name, each crossed out when its way is found.
class Missing {
 public:
  Missing(const WantedFiles& wanted, const std::vector<FileDamage>& damage) : wanted_(wanted) {
    for (const FileDamage& file : damage) {
      for (const uint32_t slot : file.slots)
        by_name_.emplace(wanted.tensor(file.file, slot).name, Place{file.file, slot});
    }
  }

  /// The copy into where the tensor belongs, if it is missing and `from` describes the same one.
  std::optional<Copy> way_of(const TensorEntry& from, Copy copy) {
    const auto found = by_name_.find(from.name);
    if (found == by_name_.end()) return std::nullopt;
    const auto [file, slot] = found->second;
    const TensorEntry& tensor = wanted_.tensor(file, slot);
    if (tensor.dtype != from.dtype || tensor.shape != from.shape) return std::nullopt;
    const ByteRange range = wanted_.range(file, slot);
    copy.file = file;
    copy.slot = slot;
    copy.offset = range.begin;
    copy.bytes = range.size();
    by_name_.erase(found);
    return copy;
  }
  [[nodiscard]] std::optional<format::Digest> digest(std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? std::nullopt : wanted_.files[found->second.file].tensors[found->second.slot];
  }

  [[nodiscard]] Result<void> check_none_left(const std::string& place) const {
    if (by_name_.empty()) return {};
    std::string_view first = by_name_.begin()->first;
    for (const auto& [name, unused] : by_name_)
      first = std::min(first, name);
    const std::string more = by_name_.size() == 1 ? "" : fmt::format(" (and {} more)", by_name_.size() - 1);
    return Error{ErrorKind::not_found,
                 fmt::format("{}: does not hold tensor \"{}\"{} as {} has it; name with --source what the repository "
                             "was packed from, or another copy of it",
                             place, first, more, wanted_.out.string())};
  }

 private:
  struct Place {
    uint32_t file;
    uint32_t slot;
  };
  const WantedFiles& wanted_;
  std::unordered_map<std::string_view, Place> by_name_;
};

Plan plan_of(std::vector<std::vector<Copy>> shards) {
  Plan plan;
  plan.shards = std::move(shards);
  for (std::vector<Copy>& copies : plan.shards) {
    sort_copies(copies);
    plan.reads.push_back({.whole = false, .ranges = wanted_ranges(copies)});
    plan.source_bytes += plan.reads.back().bytes();
  }
  return plan;
}

}  // namespace

Result<Plan> ways_from_source(const Plan& full, const WantedFiles& wanted, const std::vector<FileDamage>& damage,
                              const std::string& place) {
  Missing missing(wanted, damage);
  std::vector<std::vector<Copy>> shards(full.shards.size());
  for (size_t shard = 0; shard < full.shards.size(); ++shard) {
    for (const Copy& copy : full.shards[shard]) {
      if (copy.file == kNoFile) continue;
      const TensorEntry& made = full.result.tensors()[full.files[copy.file].tensors[copy.slot]];
      if (const auto way = missing.way_of(made, copy)) shards[shard].push_back(*way);
    }
  }
  TRY(missing.check_none_left(place));
  return plan_of(std::move(shards));
}

Result<Plan> ways_from_packed(const format::Checkpoint& source, const WantedFiles& wanted,
                              const std::vector<FileDamage>& damage, const std::string& place) {
  Missing missing(wanted, damage);
  std::vector<std::vector<Copy>> shards(source.files().size());
  for (uint32_t i = 0; i < source.tensors().size(); ++i) {
    const TensorEntry& tensor = source.tensors()[i];
    if (!tensor.digest || missing.digest(tensor.name) != tensor.digest) continue;
    if (const auto way = missing.way_of(tensor, {.tensor = i, .source = tensor.range}))
      shards[tensor.file].push_back(*way);
  }
  TRY(missing.check_none_left(place));
  return plan_of(std::move(shards));
}

}  // namespace dspack::reshard
