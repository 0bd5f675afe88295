#include "runtime/weights/linear.h"

#include <fmt/format.h>

#include <array>

#include "format/base/checked.h"
#include "runtime/weights/stored_kinds.h"

namespace dspack::runtime {

namespace {

// What stands in place of "weight" where integers are packed: GPTQ and AWQ, compressed-tensors.
constexpr std::array<std::string_view, 2> kPackedParts = {"qweight", "weight_packed"};

std::string known_kinds() {
  std::string text;
  for (const StoredKind& kind : stored_kinds())
    text += (text.empty() ? "" : ", ") + std::string(kind.description);
  return text;
}

// Why no kind has taken it.
Error not_stored(const format::Checkpoint& checkpoint, std::string_view name) {
  const auto tensor = find_tensor(checkpoint, name);
  if (tensor) {
    return {ErrorKind::unsupported, fmt::format("{} is stored as {}; {} can be run", place_of(checkpoint, **tensor),
                                                to_string((*tensor)->dtype), known_kinds())};
  }
  const std::string module(name.substr(0, name.rfind('.') + 1));
  for (const std::string_view part : kPackedParts) {
    if (const auto packed = find_tensor(checkpoint, module + std::string(part)); packed) {
      return {ErrorKind::unsupported,
              fmt::format("{} holds packed integers; {} can be run", place_of(checkpoint, **packed), known_kinds())};
    }
  }
  return tensor.error();
}

}  // namespace

uint64_t LinearSource::scale_values() const {
  return scale == nullptr ? 0 : ceil_div(form.out, form.block_out) * ceil_div(form.in, form.block_in);
}

std::string place_of(const format::Checkpoint& checkpoint, const format::TensorEntry& tensor) {
  return fmt::format("{}: {}", checkpoint.files()[tensor.file].path, tensor.name);
}

Error missing_tensor(const format::Checkpoint& checkpoint, std::string_view name) {
  const auto& manifest = checkpoint.manifest();
  if (!manifest || !manifest->coverage.of) {
    return {ErrorKind::not_found,
            fmt::format("tensor {} is missing from the checkpoint; the download may be incomplete", name)};
  }
  const format::Coverage& coverage = manifest->coverage;
  const format::Origin& origin = manifest->origin;
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
                  coverage.of->tensors, format::canonical_json(manifest->recipe), remedy)};
}

Result<const format::TensorEntry*> find_tensor(const format::Checkpoint& checkpoint, std::string_view name) {
  if (const auto* found = checkpoint.find(name); found != nullptr) return found;
  if (const auto* found = checkpoint.find(std::string(format::kWrapperPrefix).append(name)); found != nullptr) {
    return found;
  }
  return missing_tensor(checkpoint, name);
}

Result<const format::TensorEntry*> find_tensor(const format::Checkpoint& checkpoint, std::string_view name,
                                               const std::vector<uint64_t>& shape) {
  TRY_ASSIGN(const auto* found, find_tensor(checkpoint, name));
  if (found->shape == shape) return found;
  return Error{ErrorKind::invalid,
               fmt::format("{} has shape {} where config.json asks for {}", place_of(checkpoint, *found),
                           shown_shape(found->shape), shown_shape(shape))};
}

Result<LinearSource> find_linear(const format::Checkpoint& checkpoint, std::string_view name, uint32_t out, uint32_t in,
                                 const std::optional<BlockSize>& block) {
  for (const StoredKind& kind : stored_kinds()) {
    if (kind.stores(checkpoint, name)) {
      return kind.find(checkpoint, {.name = name, .out = out, .in = in, .block = block});
    }
  }
  return not_stored(checkpoint, name);
}

}  // namespace dspack::runtime
