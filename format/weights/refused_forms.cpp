#include "format/weights/refused_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "format/weights/find_tensor.h"

namespace dspack::format {

namespace {

// Published methods that are refused, with what is missing.
struct RefusedMethod {
  std::string_view method;
  std::string_view reason;
};
constexpr std::string_view kCodebooks =
    "its codes stand for vectors of a codebook; a checkpoint of compressed-tensors, AWQ or GPTQ can be run";
constexpr std::string_view kRotated =
    "its weights are rotated, and inputs would have to be; a checkpoint of compressed-tensors, AWQ or GPTQ can be run";
constexpr std::array<RefusedMethod, 13> kRefusedMethods = {{
    {"eetq",
     "its int8 codes lie in the order of the GPU kernel that they were saved for, one for Volta and another since "
     "Turing, and no file says which; convert the unquantised checkpoint instead (reshard --transform bf16-to-fp8, or "
     "experts-to-int4)"},
    {"exl2",
     "its columns are permuted and have from 2 to 8 bits, row by row of one kernel's order; a checkpoint of "
     "compressed-tensors, AWQ or GPTQ can be run"},
    {"exl3",
     "its trellis codes are described by their kernels alone; a checkpoint of compressed-tensors, AWQ or GPTQ "
     "can be run"},
    {"mxfp4",
     "gpt-oss' fused experts, whose rows of gate and up alternate, are of no model of this family; MXFP4 "
     "under compressed-tensors' or DeepSeek-V4's names can be run"},
    {"nvfp4_awq",
     "the factor of each input is still a tensor beside the weight, which no kernel here applies; a checkpoint of "
     "NVFP4 "
     "can be run"},
    {"aqlm", kCodebooks},
    {"vptq", kCodebooks},
    {"quip", kCodebooks},
    {"hqq",
     "its groups run across rows and its scales may be coded themselves; GPTQ, AWQ or compressed-tensors can be run"},
    {"spqr", "its outliers are stored apart; a checkpoint of compressed-tensors, AWQ or GPTQ can be run"},
    {"higgs", kRotated},
    {"fp_quant", kRotated},
    {"paroquant", kRotated},
}};

struct Sign {
  std::string_view part;    // the last component of a tensor's name
  std::string_view method;  // the method that writes it
};
// Sources: exllamav2 0.3.2, linear.py; exllamav3, doc/exl3.md; EETQ 465e972, python/eetq/modules/qlinear.py;
// transformers, integrations/mxfp4.py.
constexpr std::array<Sign, 15> kSigns = {{{"pre_quant_scale", "nvfp4_awq"},
                                          {"q_weight", "exl2"},
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

std::string_view refusal_of(std::string_view method) {
  const auto* refused = std::ranges::find(kRefusedMethods, method, &RefusedMethod::method);
  return refused == kRefusedMethods.end() ? std::string_view() : refused->reason;
}

Result<void> refuse_form(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  const std::string_view name = tensor.name;
  const auto* sign = std::ranges::find(kSigns, name.substr(name.rfind('.') + 1), &Sign::part);
  if (sign == kSigns.end()) return {};
  return Error{ErrorKind::unsupported,
               fmt::format(R"({} is of the form that config.json calls "quant_method": "{}", which cannot be run: {})",
                           place_of(checkpoint, tensor), sign->method, refusal_of(sign->method))};
}

}  // namespace dspack::format
