// Layer, expert and role of a tensor, from its name. Only this file knows names.
// Threads: thread-safe (pure functions). Source: the released indexes and headers of the models that each family of
// names (tensor_name.cpp) names; docs/format.md lists the families.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/ids.h"

namespace dspack::format {

/// The part of the model that a tensor belongs to.
enum class Role {
  embed,          // token embedding
  head,           // final norm and output head
  attention,      // or its replacement: linear attention
  norm,           // the layer's two norms
  router,         // with its bias or table
  shared_expert,  // with its gate
  routed_expert,  // a tensor of one expert, or the slice of a fused one
  dense_mlp,      // in a layer without experts
  mtp,            // only in an MTP module: enorm, hnorm, eh_proj, shared_head, its own embedding
  residual,       // joins a block's output to the residual stream: hyper-connections
  other,          // anything not recognised
};

[[nodiscard]] std::string_view to_string(Role role);
[[nodiscard]] std::optional<Role> parse_role(std::string_view name);

struct TensorName {
  Role role = Role::other;
  std::optional<LayerId> layer;
  std::optional<ExpertId> expert;  // only with role routed_expert
};

[[nodiscard]] TensorName parse_tensor_name(std::string_view name);

/// First layer number of MTP modules that a checkpoint numbers apart from the model's layers ("mtp.0.",
/// "mtp.layers.0."). A module that continues the layers' numbers, as V3's layer 61 does, keeps its number.
inline constexpr uint32_t kFirstMtpLayer = 60000;
[[nodiscard]] constexpr bool is_numbered_apart(LayerId layer) {
  return layer.value >= kFirstMtpLayer;
}
/// Such a module's number as a layer after the last of `layers`; any other layer is unchanged.
[[nodiscard]] constexpr LayerId layer_behind(LayerId layer, uint32_t layers) {
  return is_numbered_apart(layer) ? LayerId(layers + (layer.value - kFirstMtpLayer)) : layer;
}
/// The name that such a module's tensor would have as a layer's: "model.layers.61.eh_proj.weight" for
/// "mtp.layers.0.eh_proj.weight" and 61 layers, "layers.43.e_proj.weight" for "mtp.0.e_proj.weight" and 43. Empty: it
/// is not of such a module.
[[nodiscard]] std::string name_behind(std::string_view name, uint32_t layers);
/// For people: "61", or "mtp.0".
[[nodiscard]] std::string layer_text(LayerId layer);

/// The parts of a name that has no number where experts have theirs, as "mlp.experts.down_proj": such a tensor may hold
/// all experts of its layer.
struct FusedName {
  LayerId layer;
  size_t number_at = 0;     // where an expert's number and a dot would be inserted
  bool projection = false;  // begins as the names of an expert's matrices do ("gate_up_proj_blocks")
};
[[nodiscard]] std::optional<FusedName> parse_fused_name(std::string_view name);
/// The name of one expert's slice: "mlp.experts.7.down_proj".
[[nodiscard]] std::string slice_name(std::string_view name, const FusedName& fused, ExpertId expert);

/// Prefix of the names of a language model that is part of another model (Kimi-K2.5: a model with pictures).
inline constexpr std::string_view kWrapperPrefix = "language_model.";
/// The name without that prefix; the other functions of this file accept names with it.
[[nodiscard]] std::string_view without_wrapper(std::string_view name);

/// The order in which an MLP needs its tensors: 0 the gate projection (and any tensor outside MLPs), 1 the up
/// projection, 2 the down projection, each with its scales; w1, w3 and w2 are other names of the three. Released
/// checkpoints have the same order.
[[nodiscard]] uint32_t order_of_use(std::string_view name);

/// The name with its layer and expert number replaced by "{layer}" and "{expert}", so that similar files share one
/// text. In a file of several experts `entry` is the expert's index: "{expert[entry]}". The number of an MTP module
/// that is_numbered_apart stays.
[[nodiscard]] std::string name_template(std::string_view name, std::optional<size_t> entry = {});
/// The index in its file's experts that a template stands for: 0 for "{expert}", K for "{expert[K]}"; nullopt: none.
[[nodiscard]] std::optional<size_t> template_entry(std::string_view text);
/// The inverse of name_template, given the expert at the template's index.
[[nodiscard]] std::string expand_template(std::string_view text, std::optional<LayerId> layer,
                                          std::optional<ExpertId> expert);

/// Whether the first readers of the format, which knew only V3's names, would misread this name's numbers.
[[nodiscard]] bool needs_name_families(std::string_view name);

/// Whose code the names of a checkpoint come from, which decides which other programs can read them.
enum class NameAuthor {
  transformers,  // also names that it converts while loading: Mixtral's, Llama-4's
  deepseek,      // DeepSeek's own code, and DeepSeek-V4
  mistral,       // Mistral's own code: Mistral-Large-3
};
/// nullopt: not the name of a routed expert's tensor. Other names are ambiguous: families share some ("ffn_norm.").
[[nodiscard]] std::optional<NameAuthor> name_author(std::string_view name);

/// The names that the scale of a quantised weight may have, most usual first.
[[nodiscard]] std::vector<std::string> scale_names(std::string_view weight_name);
/// The name at `index`; nullopt: there are fewer.
[[nodiscard]] std::optional<std::string> scale_name(std::string_view weight_name, size_t index);

}  // namespace dspack::format
