// What the renderers of several chat templates share. Each renders as Jinja does, and fails where Jinja fails.
// Threads: thread-safe (pure functions). Lifetime: views point into the messages. Errors: invalid, naming the message
// by its index from 0.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "runtime/text/chat_message.h"

namespace dspack::runtime {

using Messages = std::span<const ChatMessage>;

inline constexpr std::string_view kEndOfReasoning = "</think>";

/// The content of message `index`. Errors: it has none, and the template would add it to a text.
[[nodiscard]] Result<std::string_view> content_of(Messages messages, size_t index);

/// The contents of all system messages with an empty line between.
[[nodiscard]] Result<std::string> joined_system_texts(Messages messages);

/// What stands after the last </think>; all of it where there is none.
[[nodiscard]] std::string_view without_reasoning(std::string_view content);

/// A call's arguments as text. Errors: they are no string, and the template would add them to one.
[[nodiscard]] Result<std::string_view> arguments_of(const ToolCall& call, size_t index);

/// "type<｜tool▁sep｜>name", the arguments as a ```json block, and the end of the call.
[[nodiscard]] Result<std::string> typed_call(const ToolCall& call, size_t index);

}  // namespace dspack::runtime
