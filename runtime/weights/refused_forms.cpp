#include "runtime/weights/refused_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "runtime/config/quantization_config.h"

namespace dspack::runtime {

namespace {

struct Sign {
  std::string_view part;    // the last component of a tensor's name
  std::string_view method;  // whose it is
};
// Sources: exllamav2 0.3.2, linear.py; exllamav3, doc/exl3.md; EETQ 465e972, python/eetq/modules/qlinear.py;
// transformers, integrations/mxfp4.py.
constexpr std::array<Sign, 14> kSigns = {{{"q_weight", "exl2"},
                                          {"q_scale", "exl2"},
                                          {"q_scale_max", "exl2"},
                                          {"q_groups", "exl2"},
                                          {"q_perm", "exl2"},
                                          {"q_invperm", "exl2"},
                                          {"trellis", "exl3"},
                                          {"suh", "exl3"},
                                          {"svh", "exl3"},
                                          {"weight_scales", "eetq"},
                                          {"gate_up_proj_blocks", "mxfp4"},
                                          {"gate_up_proj_scales", "mxfp4"},
                                          {"down_proj_blocks", "mxfp4"},
                                          {"down_proj_scales", "mxfp4"}}};

}  // namespace

Result<void> refuse_form(const format::Checkpoint& checkpoint, const format::TensorEntry& tensor) {
  const std::string_view name = tensor.name;
  const auto* sign = std::ranges::find(kSigns, name.substr(name.rfind('.') + 1), &Sign::part);
  if (sign == kSigns.end()) return {};
  return Error{ErrorKind::unsupported,
               fmt::format(R"({} is of the form that config.json calls "quant_method": "{}", which cannot be run: {})",
                           place_of(checkpoint, tensor), sign->method, refusal_of(sign->method))};
}

}  // namespace dspack::runtime
