#include "format/part/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <unordered_set>

#include "format/base/checked.h"
#include "format/checkpoint_builder.h"

namespace dspack::format {
namespace {

std::optional<ExpertKey> expert_of(const TensorEntry& tensor) {
  if (!tensor.place.expert) return std::nullopt;
  return ExpertKey{*tensor.place.layer, *tensor.place.expert};
}

bool has_transform(const Checkpoint& checkpoint) {
  return checkpoint.manifest() && checkpoint.manifest()->recipe.contains("transform");
}

std::string form_of(const TensorEntry& tensor) {
  return fmt::format("{} [{}]", to_string(tensor.dtype), fmt::join(tensor.shape, ", "));
}

class Completing {
 public:
  Completing(const Checkpoint& part, const Checkpoint& whole, std::optional<uint32_t> end_layer)
      : part_(part), whole_(whole), end_layer_(end_layer), may_differ_(has_transform(part) || has_transform(whole)) {}

  Result<Completion> complete() {
    TRY(compare());
    find_split_experts();
    take_from_part();
    take_from_whole();
    return finish();
  }

 private:
  /// Tensors of both must be alike, unless a transform has been at work.
  Result<void> compare() {
    for (const TensorEntry& tensor : part_.tensors()) {
      const TensorEntry* released = whole_.find(tensor.name);
      if (released == nullptr && !may_differ_ && !is_part(whole_)) {
        return Error{ErrorKind::invalid, fmt::format("it has no tensor {}, which the part holds", tensor.name)};
      }
      if (released == nullptr) continue;
      const bool is_converted = released->dtype != tensor.dtype;
      if (released->shape != tensor.shape || (is_converted && !may_differ_)) {
        return Error{ErrorKind::invalid, fmt::format("its {} is {} and that of the part {}", tensor.name,
                                                     form_of(*released), form_of(tensor))};
      }
      if (!is_converted || released->dtype != Dtype::f8_e4m3) continue;
      for (std::string& scale : scale_names(tensor.name))
        used_up_.insert(std::move(scale));
    }
    return {};
  }

  [[nodiscard]] bool is_lacking(const TensorEntry& tensor) const {
    if (end_layer_ && tensor.place.layer && tensor.place.layer->value >= *end_layer_) return false;
    return part_.find(tensor.name) == nullptr && !used_up_.contains(tensor.name);
  }

  void find_split_experts() {
    for (const auto& [key, tensors] : whole_.experts()) {
      if (part_.expert(key).empty()) continue;
      if (std::ranges::any_of(tensors, [&](uint32_t i) { return is_lacking(whole_.tensors()[i]); })) split_.insert(key);
    }
  }

  [[nodiscard]] bool is_split(const TensorEntry& tensor) const {
    const auto expert = expert_of(tensor);
    return expert && split_.contains(*expert);
  }

  void take_from_part() {
    files_ = part_.files();
    for (uint32_t i = 0; i < part_.tensors().size(); ++i) {
      if (!is_split(part_.tensors()[i])) take(part_.tensors()[i], i);
    }
  }

  void take_from_whole() {
    const auto first = narrow<uint32_t>(files_.size());
    for (const CheckpointFile& file : whole_.files()) {
      files_.push_back({.path = file.path,
                        .size_bytes = file.size_bytes,
                        .data_start = file.data_start,
                        .version = file.version,
                        .header = {}});  // 10 MB of V3's, which nobody reads here
    }
    for (uint32_t i = 0; i < whole_.tensors().size(); ++i) {
      TensorEntry tensor = whole_.tensors()[i];
      if (!is_lacking(tensor) && !is_split(tensor)) continue;
      tensor.file += first;
      take(std::move(tensor), i);
      absent_.push_back(i);
    }
  }

  void take(TensorEntry tensor, uint32_t own) {
    tensors_.push_back(std::move(tensor));
    own_.push_back(own);
  }

  Result<Completion> finish() {
    Manifest manifest = *part_.manifest();
    // What is still missing is missing from the other place, too.
    if (!is_part(whole_)) {
      if (manifest.coverage.of) static_cast<Extension&>(manifest.coverage) = *manifest.coverage.of;
      manifest.coverage.of.reset();
    }
    CheckpointBuilder builder;
    TRY(builder.add_known(std::move(files_), std::move(tensors_), std::move(manifest)));
    return Completion{.catalogue = builder.finish(), .own = std::move(own_), .absent = std::move(absent_)};
  }

  const Checkpoint& part_;
  const Checkpoint& whole_;
  std::optional<uint32_t> end_layer_;
  bool may_differ_;
  std::unordered_set<std::string> used_up_;  // scales of weights that the part has in another form
  std::set<ExpertKey> split_;                // of which the part has some tensors
  std::vector<CheckpointFile> files_;
  std::vector<TensorEntry> tensors_;
  std::vector<uint32_t> own_;
  std::vector<uint32_t> absent_;
};

}  // namespace

bool is_part(const Checkpoint& checkpoint) {
  return checkpoint.manifest() && checkpoint.manifest()->coverage.of.has_value();
}

Result<Completion> complete(const Checkpoint& part, const Checkpoint& whole, std::optional<uint32_t> end_layer) {
  DSPACK_CHECK(is_part(part), "what is no part lacks nothing");
  return Completing(part, whole, end_layer).complete();
}

}  // namespace dspack::format
