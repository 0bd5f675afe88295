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

/// The name that a tensor of an MTP module has where such modules are numbered apart ("mtp.0.", "mtp.layers.0."): they
/// are looked for as layers after the last (Checkpoint::place_modules). Any other name is unchanged.
std::string name_apart(const Checkpoint& checkpoint, std::string_view name, LayerId layer) {
  for (const TensorEntry& tensor : checkpoint.tensors()) {
    const auto apart = parse_tensor_name(tensor.name).layer;
    if (tensor.place.layer != layer || !apart || !is_numbered_apart(*apart)) continue;
    const std::string as_layer = name_behind(tensor.name, layer.value - (apart->value - kFirstMtpLayer));
    // Both end with the same part.
    const auto part = std::mismatch(as_layer.rbegin(), as_layer.rend(), tensor.name.rbegin(), tensor.name.rend());
    const size_t bytes = static_cast<size_t>(part.first - as_layer.rbegin());
    if (!name.starts_with(as_layer.substr(0, as_layer.size() - bytes))) continue;
    return tensor.name.substr(0, tensor.name.size() - bytes).append(name.substr(as_layer.size() - bytes));
  }
  return std::string(name);
}

/// The name that the file would have for a missing tensor: of an expert that of the fused tensor, if the layer's
/// experts are fused.
std::string missing_name(const Checkpoint& checkpoint, std::string_view name) {
  const TensorName place = parse_tensor_name(name);
  if (!place.expert) return place.layer ? name_apart(checkpoint, name, *place.layer) : std::string(name);
  std::set<std::string_view> fused;
  for (const FusedTensor& tensor : checkpoint.fused()) {
    if (const auto parsed = parse_fused_name(tensor.name); parsed && parsed->layer == *place.layer)
      fused.insert(tensor.name);
  }
  if (fused.empty()) return name_apart(checkpoint, name, *place.layer);
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
