// The known families of tensor names: the prefixes of layer and expert numbers, and the meaning of the parts after
// them. Tables only; format/tensor_name.h reads names by them.
// Threads: immutable. Source: the released indexes and headers of the models that each family names.
#pragma once

#include <span>
#include <string_view>

#include "format/tensor_name.h"

namespace dspack::format {

/// How a name, or what is left of it, begins, and what such tensors are.
struct NamePart {
  std::string_view begin;
  Role role = Role::other;
};

struct NameFamily {
  NameAuthor author = NameAuthor::transformers;
  std::string_view experts;          // between a layer's number and an expert's: "mlp.experts."
  std::span<const NamePart> layer;   // behind a layer's number; none of all families' begins another
  std::span<const NamePart> global;  // of tensors of no layer, behind the prefix
};

/// The family of most models first.
[[nodiscard]] std::span<const NameFamily> name_families();

/// What may stand before all names of a language model, the longer ones before those that they begin with; the last is
/// empty. Any family's names may follow.
[[nodiscard]] std::span<const std::string_view> name_prefixes();

/// What stands between such a prefix and the number of a layer.
struct NameStack {
  std::string_view begin;
  bool mtp = false;  // multi-token-prediction modules, counted from 0
};
[[nodiscard]] std::span<const NameStack> name_stacks();

/// The first words of an expert's matrices and of what belongs to them: "gate_up_proj" of "gate_up_proj_blocks".
struct ProjectionWord {
  std::string_view word;
  uint32_t use = 0;  // as order_of_use
};
[[nodiscard]] std::span<const ProjectionWord> projection_words();

}  // namespace dspack::format
