#include "format/weights/find_tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>

#include "format/tensor_name.h"

namespace dspack::format {

namespace {

/// The fused tensor of the file that this one is a slice of; nullptr: it is no slice, or not an element of tensors().
const FusedTensor* whole_of(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  const std::vector<TensorEntry>& all = checkpoint.tensors();
  const auto found = std::ranges::find_if(checkpoint.fused(), [&](const FusedTensor& fused) {
    const TensorEntry* first = all.data() + fused.first;
    return !std::less<>()(&tensor, first) && std::less<>()(&tensor, first + fused.slices);
  });
  return found == checkpoint.fused().end() ? nullptr : &*found;
}

/// The name that the file would have for an expert's missing tensor: that of the fused tensor if the layer's experts
/// are fused.
std::string missing_name(const Checkpoint& checkpoint, std::string_view name) {
  const TensorName place = parse_tensor_name(name);
  if (!place.expert) return std::string(name);
  std::set<std::string_view> fused;
  for (const FusedTensor& tensor : checkpoint.fused()) {
    if (const auto parsed = parse_fused_name(tensor.name); parsed && parsed->layer == *place.layer)
      fused.insert(tensor.name);
  }
  if (fused.empty()) return std::string(name);
  const std::string prefix(fused.begin()->substr(0, fused.begin()->rfind('.') + 1));
  for (const char* word : {"gate_up_proj", "down_proj"}) {
    if (!fused.contains(prefix + word)) return prefix + word;
  }
  return std::string(name);
}

}  // namespace

std::string place_of(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  const FusedTensor* whole = whole_of(checkpoint, tensor);
  return fmt::format("{}: {}", checkpoint.files()[tensor.file].path, whole == nullptr ? tensor.name : whole->name);
}

Error missing_tensor(const Checkpoint& checkpoint, std::string_view name) {
  const auto& manifest = checkpoint.manifest();
  if (!manifest || !manifest->coverage.of) {
    return {ErrorKind::not_found,
            fmt::format("tensor {} is missing from the checkpoint; the download may be incomplete{}",
                        missing_name(checkpoint, name), kFetchAgain)};
  }
  const Coverage& coverage = manifest->coverage;
  const Origin& origin = manifest->origin;
  const std::string remedy =
      origin.repository.empty()
          ? "--absent-from PLACE reads the rest from the folder or address that it was made from"
          : fmt::format("--absent-from origin reads the rest from where it was made from, hf://{}@{}",
                        origin.repository, origin.revision);
  return {
      ErrorKind::not_found,
      fmt::format("tensor {} is absent: this packed repository holds a part of the model, {} of {} layers, {} of {} "
                  "experts and {} of {} tensors (recipe {}); {}, or pack more of it",
                  name, coverage.layers, coverage.of->layers, coverage.experts, coverage.of->experts, coverage.tensors,
                  coverage.of->tensors, canonical_json(manifest->recipe), remedy)};
}

Result<const TensorEntry*> find_tensor(const Checkpoint& checkpoint, std::string_view name) {
  if (const auto* found = checkpoint.find_matrix(name); found != nullptr) return found;
  if (const auto* found = checkpoint.find_matrix(std::string(kWrapperPrefix).append(name)); found != nullptr) {
    return found;
  }
  return missing_tensor(checkpoint, name);
}

Result<const TensorEntry*> find_tensor(const Checkpoint& checkpoint, std::string_view name,
                                       const std::vector<uint64_t>& shape) {
  TRY_ASSIGN(const auto* found, find_tensor(checkpoint, name));
  if (found->shape == shape) return found;
  return Error{ErrorKind::invalid,
               fmt::format("{} has shape {} where config.json asks for {}", place_of(checkpoint, *found),
                           shown_shape(found->shape), shown_shape(shape))};
}

std::string shown_shape(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace dspack::format
