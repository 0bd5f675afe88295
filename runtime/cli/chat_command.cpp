#include "runtime/cli/chat_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "format/base/foreign_text.h"
#include "format/base/near_word.h"

namespace dspack::runtime {

namespace {

enum class Takes { nothing, something, anything };

struct Known {
  std::string_view name;
  Command command;
  Takes takes;
};

constexpr std::array kKnown{
    Known{"clear", Command::clear, Takes::nothing}, Known{"context", Command::context, Takes::nothing},
    Known{"exit", Command::leave, Takes::nothing},  Known{"quit", Command::leave, Takes::nothing},
    Known{"bye", Command::leave, Takes::nothing},   Known{"help", Command::help, Takes::nothing},
    Known{"load", Command::load, Takes::something}, Known{"read", Command::read, Takes::something},
    Known{"regen", Command::regen, Takes::nothing}, Known{"save", Command::save, Takes::something},
    Known{"stats", Command::stats, Takes::nothing}, Known{"system", Command::system, Takes::anything},
    Known{"temp", Command::temp, Takes::something}, Known{"temperature", Command::temp, Takes::something},
};

constexpr char kCommands[] =
    "/clear        forget the conversation\n"
    "/context      how much of the context is used\n"
    "/exit         leave (also Ctrl-D)\n"
    "/help         this list\n"
    "/load FILE    continue a saved conversation\n"
    "/read FILE    put a text file in front of the next question\n"
    "/regen        answer the last question again\n"
    "/save FILE    save the conversation, with what the model has read of it\n"
    "/stats        tokens, speed and bytes read so far\n"
    "/system TEXT  set the system message; without TEXT remove it\n"
    "/temp X       set the temperature; 0 always takes the likeliest token\n"
    "Ctrl-C        stop the answer; twice at the prompt: leave\n";

// The known command that was probably meant.
std::optional<std::string> meant(std::string_view word) {
  std::vector<std::string> names;
  for (const Known& known : kKnown)
    names.emplace_back(known.name);
  return format::near_word(word, names);
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

Error mistake(std::string text) {
  return {ErrorKind::invalid, std::move(text)};
}

}  // namespace

Result<std::optional<CommandLine>> parse_command(std::string_view message) {
  constexpr std::string_view kSpace = " \t";
  if (!message.starts_with('/') || message.find('\n') != std::string_view::npos) return std::optional<CommandLine>();
  std::string_view word = message.substr(1, message.find_first_of(kSpace) - 1);
  std::string_view rest = message.substr(1 + word.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(kSpace), rest.size()));
  rest = rest.substr(0, rest.find_last_not_of(kSpace) + 1);
  if (word.empty() || !std::ranges::all_of(word, is_letter)) return std::optional<CommandLine>();

  const auto* const known = std::ranges::find(kKnown, word, &Known::name);
  if (known == kKnown.end()) {
    const auto near = meant(word);
    if (!near) return mistake(fmt::format("there is no command /{}; /help lists them", brief(word)));
    return mistake(fmt::format("there is no command /{}; did you mean /{}? (/help lists them)", brief(word), *near));
  }
  if (known->takes == Takes::nothing && !rest.empty()) {
    return mistake(fmt::format("/{} takes nothing after it; there is {}", word, quote(rest)));
  }
  if (known->takes == Takes::something && rest.empty()) {
    return mistake(fmt::format("/{} needs {} after it", word, known->command == Command::temp ? "a number" : "a file"));
  }
  return std::optional(CommandLine{.command = known->command, .argument = std::string(rest)});
}

std::string command_help(bool edits) {
  return kCommands + std::string(edits
                                     ? "Several lines: paste them, or end each but the last with Alt-Enter or \\\n"
                                       "Keys: arrows, Home, End, Ctrl-left and -right, Ctrl-R searches earlier lines"
                                     : "Several lines: paste them, end each but the last with \\, or put them between "
                                       "two lines of \"\"\"");
}

}  // namespace dspack::runtime
