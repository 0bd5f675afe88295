// The known families of tensor names: the prefixes of layer and expert numbers, and the meaning of the parts after
// them. Tables only; format/tensor_name.h reads names by them.
// Threads: immutable. Source: the released indexes and headers of the models that each family names.
#pragma once

#include <span>
#include <string_view>

#include "format/tensor_name.h"

namespace dspack::format {

/// The beginning of a name, or of its remaining part, and the role of such tensors.
struct NamePart {
  std::string_view begin;
  Role role = Role::other;
};

struct NameFamily {
  NameAuthor author = NameAuthor::transformers;
  std::string_view experts;          // between the layer's number and the expert's: "mlp.experts."
  std::span<const NamePart> layer;   // after a layer's number; in all families, none is a prefix of another
  std::span<const NamePart> global;  // outside of layers, after the prefix
};

/// The family of most models first.
[[nodiscard]] std::span<const NameFamily> name_families();

/// Prefixes of all names of a language model, longer ones before their own prefixes; the last is empty. Names of any
/// family may follow.
[[nodiscard]] std::span<const std::string_view> name_prefixes();

/// The part between such a prefix and the number of a layer.
struct NameStack {
  std::string_view begin;
  bool mtp = false;  // multi-token-prediction modules, counted from 0
};
[[nodiscard]] std::span<const NameStack> name_stacks();

/// First words of the names of an expert's matrices and of tensors that belong to them: "gate_up_proj" of
/// "gate_up_proj_blocks".
struct ProjectionWord {
  std::string_view word;
  uint32_t use = 0;  // as order_of_use
};
[[nodiscard]] std::span<const ProjectionWord> projection_words();

}  // namespace dspack::format
