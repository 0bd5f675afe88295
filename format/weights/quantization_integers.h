// Readers of "quantization_config" for integer codes in groups, and for bitsandbytes' maps.
// Threads: single-thread, as ConfigFields. Errors: as ConfigFields keeps them. Source: AutoAWQ, GPTQModel 7.7,
// AutoRound 0.16.1, transformers and vLLM, as they write and read it.
#pragma once

#include <string>
#include <vector>

#include "format/config_fields.h"
#include "format/weights/quantization_config.h"

namespace dspack::format {

/// The settings of "quant_method": "awq", "gptq", "auto-round", "moe_wna16", "bitsandbytes".
[[nodiscard]] Quantization read_awq(ConfigFields& fields, std::vector<std::string>& notes);
[[nodiscard]] Quantization read_gptq(ConfigFields& fields, std::vector<std::string>& notes);
[[nodiscard]] Quantization read_auto_round(ConfigFields& fields, std::vector<std::string>& notes);
[[nodiscard]] Quantization read_wna16(ConfigFields& fields, std::vector<std::string>& notes);
[[nodiscard]] Quantization read_bitsandbytes(ConfigFields& fields, std::vector<std::string>& notes);

}  // namespace dspack::format
