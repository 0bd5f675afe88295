#include <fmt/format.h>

#include <array>

#include "runtime/weights/stored_kinds.h"

namespace dspack::runtime {

namespace {

constexpr std::array<std::string_view, 1> kPlainParts = {"weight"};

bool stores_plain(const format::Checkpoint& checkpoint, std::string_view name) {
  const auto tensor = find_tensor(checkpoint, name);
  if (!tensor) return false;
  const Dtype dtype = (*tensor)->dtype;
  return dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16;
}

Result<LinearSource> find_plain(const format::Checkpoint& checkpoint, const LinearRequest& request) {
  TRY_ASSIGN(LinearSource source, find_whole_weight(checkpoint, request));
  const auto* scale = find_scale(checkpoint, *source.weight);
  if (scale == nullptr) return source;
  return Error{ErrorKind::invalid,
               fmt::format("{} is {} and yet has scales ({}); its values are not certain",
                           place_of(checkpoint, *source.weight), to_string(source.weight->dtype), scale->name)};
}

}  // namespace

StoredKind plain_kind() {
  return {.description = "BF16, F16, F32", .parts = kPlainParts, .stores = stores_plain, .find = find_plain};
}

}  // namespace dspack::runtime
