// Guards untrusted text within a text whose special tokens are parsed, as a chat template writes it: text that spells
// such a token stays text when the whole is encoded. A guard is a Unicode noncharacter: the character after it is not
// part of a token's spelling. Guards in the untrusted text are themselves guarded.
// Threads: pure functions. Errors: none.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "runtime/text/chat_message.h"

namespace dspack::runtime {

inline constexpr std::string_view kGuard = "\uFDD2";

/// Guards all strings and keys within `value`; `guard` does so for one text: Tokenizer::guarded.
[[nodiscard]] OrderedJson guard_texts(const OrderedJson& value,
                                      const std::function<std::string(std::string_view)>& guard);
/// Removes the guards, for people to read.
[[nodiscard]] std::string unguarded(std::string_view text);

}  // namespace dspack::runtime
