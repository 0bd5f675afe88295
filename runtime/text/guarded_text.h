// Text of strangers within a text whose special tokens mean something, as a chat template writes it: what spells such a
// token there is guarded, and stays text when the whole is encoded. A guard is a noncharacter of Unicode, which says
// that the character after it is no part of a token's spelling; a guard that a stranger writes has one in front.
// Threads: pure functions. Errors: none.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "runtime/text/chat_message.h"

namespace dspack::runtime {

inline constexpr std::string_view kGuard = "\uFDD2";

/// All strings and keys within it, guarded; `guard` does it to one: Tokenizer::guarded.
[[nodiscard]] OrderedJson guard_texts(const OrderedJson& value,
                                      const std::function<std::string(std::string_view)>& guard);
/// What was meant, as people read it.
[[nodiscard]] std::string unguarded(std::string_view text);

}  // namespace dspack::runtime
