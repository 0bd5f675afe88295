#include "runtime/cli/chat_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "format/base/foreign_text.h"

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
    Known{"read", Command::read, Takes::something}, Known{"regen", Command::regen, Takes::nothing},
    Known{"stats", Command::stats, Takes::nothing}, Known{"system", Command::system, Takes::anything},
    Known{"temp", Command::temp, Takes::something},
};

constexpr char kCommands[] =
    "/clear        forget the conversation\n"
    "/context      how much of the context is used\n"
    "/exit         leave (also Ctrl-D)\n"
    "/help         this list\n"
    "/read FILE    put a text file in front of the next question\n"
    "/regen        answer the last question again\n"
    "/stats        tokens, speed and bytes read so far\n"
    "/system TEXT  set the system message; without TEXT remove it\n"
    "/temp X       set the temperature; 0 always takes the likeliest token\n"
    "Ctrl-C        stop the answer; twice at the prompt: leave\n";

size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// The nearest name, of those that begin alike or differ by two letters at most; empty: none.
std::string_view meant(std::string_view word) {
  constexpr size_t kMostBytes = 16;
  if (word.size() > kMostBytes) return {};
  const Known* best = nullptr;
  size_t least = 3;
  for (const Known& known : kKnown) {
    const bool begins_alike = word.size() >= 2 && (known.name.starts_with(word) || word.starts_with(known.name));
    const size_t differs = begins_alike ? 1 : distance(word, known.name);
    if (differs < least && differs < word.size()) {
      least = differs;
      best = &known;
    }
  }
  return best == nullptr ? std::string_view() : best->name;
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
    const std::string_view near = meant(word);
    if (near.empty()) return mistake(fmt::format("there is no command /{}; /help lists them", brief(word)));
    return mistake(fmt::format("there is no command /{}; did you mean /{}? (/help lists them)", brief(word), near));
  }
  if (known->takes == Takes::nothing && !rest.empty()) {
    return mistake(fmt::format("/{} takes nothing behind it; there is {}", word, quote(rest)));
  }
  if (known->takes == Takes::something && rest.empty()) {
    return mistake(
        fmt::format("/{} needs {} behind it", word, known->command == Command::read ? "a file" : "a number"));
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
