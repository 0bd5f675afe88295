// Names of tensors. Input: names, one a line.
#include "format/tensor_name.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using format::Role;

namespace {

/// A name where all experts of a layer may be: each of its slices is one expert's.
void check_fused(std::string_view name, const format::FusedName& fused) {
  const std::string slice = format::slice_name(name, fused, ExpertId(kMaxId));
  const format::TensorName parsed = format::parse_tensor_name(slice);
  DSPACK_CHECK(parsed.layer == fused.layer && parsed.expert == ExpertId(kMaxId), slice);
  DSPACK_CHECK(!format::parse_fused_name(slice), "a slice is fused itself");
  DSPACK_CHECK(!format::parse_tensor_name(name).expert, "a fused name with an expert");
}

void check_name(std::string_view name) {
  const format::TensorName parsed = format::parse_tensor_name(name);
  DSPACK_CHECK(parsed.layer.value_or(LayerId()).value <= kMaxId, "a layer beyond the limit");
  DSPACK_CHECK(parsed.expert.value_or(ExpertId()).value <= kMaxId, "an expert beyond the limit");
  DSPACK_CHECK(parsed.expert.has_value() == (parsed.role == Role::routed_expert), "an expert and its role go together");
  DSPACK_CHECK(!parsed.expert || parsed.layer, "an expert without a layer");
  DSPACK_CHECK(format::parse_role(format::to_string(parsed.role)) == parsed.role, "a role reads back");
  if (const auto fused = format::parse_fused_name(name)) check_fused(name, *fused);
  DSPACK_CHECK(parsed.layer || !format::needs_name_families(name), "without numbers there is nothing to misread");

  const std::string shared = format::name_template(name);
  DSPACK_CHECK(format::expand_template(shared, parsed.layer, parsed.expert) == name, shared);
  if (!parsed.layer) {
    DSPACK_CHECK(shared == name, "a name without numbers is its own template");
    return;
  }
  if (parsed.expert) {
    const std::string of_several = format::name_template(name, 5);
    DSPACK_CHECK(format::template_entry(of_several) == 5 && format::template_entry(shared) == 0, of_several);
    DSPACK_CHECK(format::expand_template(of_several, parsed.layer, parsed.expert) == name, of_several);
  }
  // The same name of another layer and expert has the same template, but for a number that stays in it.
  const bool stays = format::is_numbered_apart(*parsed.layer);
  const LayerId other_layer = stays ? *parsed.layer : LayerId(parsed.layer->value ^ 1);
  const auto other_expert = parsed.expert ? std::optional(ExpertId(parsed.expert->value ^ 1)) : std::nullopt;
  const std::string other = format::expand_template(shared, other_layer, other_expert);
  const format::TensorName moved = format::parse_tensor_name(other);
  DSPACK_CHECK(moved.role == parsed.role && moved.layer == other_layer, other);
  DSPACK_CHECK(moved.expert == other_expert && format::name_template(other) == shared, other);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const std::string_view name : fuzz::split(fuzz::as_text(data, size), '\n')) {
    check_name(name);
    for (const std::string& scale : format::scale_names(name))
      check_name(scale);
  }
  return 0;
}
