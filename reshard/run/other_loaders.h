// What programs other than dspack make of a packed repository: what keeps them from opening it as it lies there, and
// who knows the names of its tensors. For the model card, `link` and `inspect`, which say the same. Threads: pure
// functions. Source: transformers 5.23.0 (conversion_mapping.py); vLLM 0.33.0 and SGLang 0.5.23 (default_loader.py and
// loader.py; their models deepseek_v4 and mistral_large_3). docs/link.md.
#pragma once

#include <optional>
#include <string_view>

#include "format/manifest.h"
#include "format/tensor_name.h"

namespace dspack::reshard {

/// Why no other program can read the weights as they lie there, as the end of a sentence ("it cannot be read: ...");
/// for all of it `reshard unpack` is the remedy. nullopt: they can.
[[nodiscard]] std::optional<std::string_view> unreadable_reason(const format::Manifest& manifest);

/// By the names of the experts; transformers' where there are none.
[[nodiscard]] format::NameAuthor name_author(const format::Manifest& manifest);

/// Who reads names that are not transformers' own, in a sentence or two for people; empty: they are.
[[nodiscard]] std::string_view readers_of_names(format::NameAuthor author);

}  // namespace dspack::reshard
