// The commands of a chat: a line that begins with a slash. Threads: thread-safe (pure functions).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack::runtime {

enum class Command { clear, context, help, leave, load, read, regen, save, stats, system, temp };

struct CommandLine {
  Command command;
  std::string argument;  // without the space around it
};

/// Nullopt: the message is no command, but a question (several lines, or no word of letters after the slash: a path,
/// say). Errors: invalid: no such command (with the one that was probably meant), an argument too many or none.
[[nodiscard]] Result<std::optional<CommandLine>> parse_command(std::string_view message);

/// What /help prints; `edits`: for a terminal on which lines can be edited.
[[nodiscard]] std::string command_help(bool edits);

}  // namespace dspack::runtime
