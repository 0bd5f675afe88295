// Keys of config.json that are not sizes: those with only one value that can run, and those without effect on the
// result. Any other key that is not read is refused (ConfigFields::refuse_others).
// Threads: thread-safe (pure functions). Source: DeepSeek's and transformers' configuration classes, and the released
// config.json files.
#pragma once

#include <span>
#include <string_view>

#include "format/config_fields.h"

namespace dspack::runtime {

/// Fails (unsupported) where a key changes the computation into one that this program does not do. `elsewhere`: keys
/// that the model has a use for.
void refuse_other_values(format::ConfigFields& fields, std::span<const std::string_view> elsewhere);

/// Keys of a language model's configuration that do not change its logits.
[[nodiscard]] std::span<const std::string_view> keys_without_effect();

/// Keys of a configuration whose language model is described in its "text_config": the rest is about images.
[[nodiscard]] std::span<const std::string_view> wrapper_keys_without_effect();

}  // namespace dspack::runtime
