// The commands of a chat: lines that begin with a slash.
// Threads: thread-safe (pure functions).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::runtime {

enum class Command { clear, context, help, leave, load, read, regen, save, stats, system, temp };

struct CommandLine {
  Command command;
  std::string argument;  // without surrounding space
};

/// nullopt: the message is a question (it has several lines, or no word of letters follows the slash, as in a path).
/// Errors: invalid: unknown command (with the most similar one), an unexpected argument or a missing one.
[[nodiscard]] Result<std::optional<CommandLine>> parse_command(std::string_view message);

/// The text of /help; `edits`: for a terminal with line editing.
[[nodiscard]] std::string command_help(bool edits);

}  // namespace dspack::runtime
