#include "format/weights/find_tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dspack::format {

std::string place_of(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  return fmt::format("{}: {}", checkpoint.files()[tensor.file].path, tensor.name);
}

Error missing_tensor(const Checkpoint& checkpoint, std::string_view name) {
  const auto& manifest = checkpoint.manifest();
  if (!manifest || !manifest->coverage.of) {
    return {
        ErrorKind::not_found,
        fmt::format("tensor {} is missing from the checkpoint; the download may be incomplete{}", name, kFetchAgain)};
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
