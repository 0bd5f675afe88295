#include "format/cli/verb.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "dspack_version.h"
#include "format/base/foreign_text.h"
#include "format/base/near_word.h"
#include "format/base/result.h"
#include "format/cli/build_facts.h"
#include "format/cli/environment.h"
#include "format/cli/manual.h"
#include "format/cli/output.h"
#include "format/file_system.h"

namespace dspack::format {
namespace {

constexpr int kWrongUsage = 2;
constexpr char kExitStatus[] = "Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.";

/// Shows options with the names of their values; exclusions are left to the descriptions.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return help_entry(make_option_name(option, is_positional) + make_option_opts(option), option->get_description());
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0) return "";
    std::string text = option->get_type_name().empty() ? "" : " " + option->get_type_name();
    if (!option->get_default_str().empty()) text += "=" + option->get_default_str();
    return option->get_required() && option->nonpositional() ? text + " (required)" : text;
  }

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (size_t at = text.find("\n\n\n"); at != std::string::npos; at = text.find("\n\n\n", at))
      text.erase(at, 1);
    return text;
  }
};

std::string full_name(const Program& program, const Verb& verb) {
  return verb.name.empty() ? program.name : fmt::format("{} {}", program.name, verb.name);
}

std::string verb_list(const Program& program) {
  std::string text = fmt::format("Verbs ({} help VERB explains one):\n", program.name);
  for (const Verb& verb : program.verbs) {
    std::string names = verb.name;
    for (const std::string& alias : verb.aliases)
      names += (names.empty() ? "" : ", ") + alias;
    if (!names.empty()) text += help_entry(names, verb.about + (verb.name.empty() ? "; the word may be left out" : ""));
  }
  return text;
}

std::string version_text(const Program& program) {
  return fmt::format("{} (dspack) {}\n{}{}", program.name, kVersion, source_and_compiler(),
                     program.build_facts ? program.build_facts() : "");
}

/// A verb's App and what was declared in it.
struct Declared {
  std::unique_ptr<CLI::App> app;
  Invocation invocation;
  std::shared_ptr<bool> is_quiet;
  std::vector<OptionSheet> options;
};

Declared declare(const Program& program, const Verb& verb) {
  auto app = std::make_unique<CLI::App>(verb.about, full_name(program, verb));
  app->formatter(std::make_shared<HelpFormatter>());
  app->set_help_flag("-h,--help", "Print this help");
  if (verb.name.empty())
    app->set_version_flag(
        "--version", [&program] { return version_text(program); },
        "Print the version, and what this build has and this machine uses");
  const auto is_quiet = std::make_shared<bool>(false);
  app->add_flag("-q,--quiet", *is_quiet, "Print results and errors: no progress, no notes");
  OptionTable table(*app);
  Invocation invocation = verb.declare(table);
  table.finish();
  if (verb.name.empty()) {
    app->footer(fmt::format("{}\n{}\n\n{}\n{}", verb_list(program), app->get_footer(), help_text(kEnvironmentHelp),
                            kExitStatus));
  }
  return {std::move(app), std::move(invocation), is_quiet, table.sheets()};
}

/// The names of a verb's options, with their dashes.
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      names.push_back("--" + name);
    for (const std::string& name : option->get_snames())
      names.push_back("-" + name);
  }
  return names;
}

/// The full name of a verb that has this option, as a user types it; empty: none has.
std::string owner_of(const Program& program, const std::string& option) {
  for (const Verb& verb : program.verbs) {
    const std::vector<std::string> names = option_names(*declare(program, verb).app);
    if (std::ranges::find(names, option) != names.end()) return full_name(program, verb);
  }
  return {};
}

/// Explains the first word that no option and no argument takes. An unknown option is named before other words: the
/// word after it may have been its value.
std::string unexpected(const Program& program, const CLI::App& app, const std::vector<std::string>& words) {
  const auto option = std::ranges::find_if(words, [](const std::string& word) { return word.starts_with('-'); });
  if (option == words.end()) {
    return fmt::format("{} is one argument more than there may be; put a text of several words in quotes",
                       quote(words.front()));
  }
  const std::string name = option->substr(0, option->find('='));
  const std::string near = did_you_mean(name, option_names(app));
  const std::string owner = near.empty() ? owner_of(program, name) : "";
  return owner.empty() ? fmt::format("there is no option {}{}", quote(name), near)
                       : fmt::format("{} is an option of {}", quote(name), owner);
}

/// The name of an option as typed: "-t8" without its number, "--top=1" without its value.
std::string option_name(const std::string& word) {
  std::string name = word.substr(0, word.find('='));
  const bool is_short = name.size() > 2 && name[1] != '-';
  while (is_short && name.size() > 2 && name.back() >= '0' && name.back() <= '9')
    name.pop_back();
  return name;
}

std::string hint(const Program& program, const std::string& name, const PeerOption& peer, const CLI::App& app) {
  std::string text = fmt::format("there is no option {}", quote(name));
  if (!peer.own.empty()) {
    const std::string owner = app.get_option_no_throw(peer.own) == nullptr ? owner_of(program, peer.own) : "";
    text += fmt::format("; here it is {}{}", peer.own, owner.empty() ? "" : ", an option of " + owner);
  }
  return peer.advice.empty() ? text : fmt::format("{}; {}", text, peer.advice);
}

/// The hint for the first option that only other programs have; empty: there is none. Must run before CLI11 parses,
/// which would read "-ngl 9" as "-n" with the value "gl", and "-hf" as a request for help.
std::string peer_hint(const Program& program, const CLI::App& app, const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size() && words[i] != "--" && words[i] != "-h" && words[i] != "--help"; ++i) {
    if (!words[i].starts_with('-')) continue;
    if (const CLI::Option* own = app.get_option_no_throw(words[i])) {
      if (own->get_type_size() > 0 && own->get_items_expected_min() > 0) ++i;  // its value, whatever that looks like
      continue;
    }
    const std::string name = option_name(words[i]);
    if (app.get_option_no_throw(name) != nullptr) continue;
    for (const PeerOption& peer : program.peer_options) {
      if (std::ranges::find(peer.names, name) != peer.names.end()) return hint(program, name, peer, app);
    }
  }
  return {};
}

CommandLine mistake(const Program& program, std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return {.verb = {}, .status = kWrongUsage, .text = fmt::format("{}: {}\n", program.name, text)};
}

CommandLine parse(const Program& program, const Verb& verb, std::vector<std::string> arguments) {
  Declared declared = declare(program, verb);
  const auto explained = [&](const std::string& text) {
    return mistake(program, fmt::format("{} ({} --help explains)", text, full_name(program, verb)));
  };
  if (const std::string known = peer_hint(program, *declared.app, arguments); !known.empty()) return explained(known);
  std::ranges::reverse(arguments);  // CLI11 takes them from the back
  try {
    declared.app->parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    return {.verb = {}, .status = 0, .text = declared.app->help()};
  } catch (const CLI::Success& asked) {
    return {.verb = {}, .status = 0, .text = asked.what()};
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> left = declared.app->remaining();
    const bool is_unknown = std::ranges::any_of(left, [](const std::string& word) { return word.starts_with('-'); });
    const bool is_more = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !left.empty();
    return explained(is_unknown || is_more ? unexpected(program, *declared.app, left) : error.what());
  }
  if (const auto complete = declared.invocation.complete(); !complete) return explained(complete.error().message);
  return {.verb = std::move(declared.invocation), .is_quiet = *declared.is_quiet, .status = 0, .text = {}};
}

ProgramSheet sheet_of(const Program& program) {
  ProgramSheet sheet{.name = program.name, .version = kVersion, .verbs = {}};
  for (const Verb& verb : program.verbs) {
    Declared declared = declare(program, verb);
    sheet.verbs.push_back({.name = verb.name,
                           .about = verb.about,
                           .text = declared.app->get_description(),
                           .footer = declared.app->get_footer(),
                           .options = std::move(declared.options)});
  }
  return sheet;
}

/// --manual and --completion SHELL, for the build and for shells; not in any help text.
std::optional<CommandLine> generated_text(const Program& program, const std::vector<std::string>& arguments) {
  if (arguments == std::vector<std::string>{"--manual"})
    return CommandLine{.verb = {}, .status = 0, .text = manual_page(sheet_of(program))};
  if (arguments.size() != 2 || arguments[0] != "--completion") return std::nullopt;
  Result<std::string> text = completion(sheet_of(program), arguments[1]);
  if (!text) return mistake(program, "--completion: " + text.error().message);
  return CommandLine{.verb = {}, .status = 0, .text = *std::move(text)};
}

constexpr char kHelp[] = "help";

/// The verb with this name or alias; nullptr: none.
const Verb* verb_named(const Program& program, const std::string& word) {
  const auto named = std::ranges::find_if(program.verbs, [&](const Verb& verb) {
    return (!verb.name.empty() && verb.name == word) || std::ranges::find(verb.aliases, word) != verb.aliases.end();
  });
  return named == program.verbs.end() ? nullptr : &*named;
}

std::vector<std::string> verb_words(const Program& program) {
  std::vector<std::string> words;
  for (const Verb& verb : program.verbs) {
    if (!verb.name.empty()) words.push_back(verb.name);
    words.insert(words.end(), verb.aliases.begin(), verb.aliases.end());
  }
  words.emplace_back(kHelp);
  return words;
}

CommandLine no_such_verb(const Program& program, const std::string& word) {
  return mistake(program, fmt::format("there is no verb {}{}", quote(word), did_you_mean(word, verb_words(program))));
}

/// Whether a first word is a mistyped verb: it resembles one, and no file or folder has that name.
bool is_misspelt_verb(const Program& program, const std::string& word) {
  if (word.starts_with('-') || word.find('/') != std::string::npos) return false;
  if (!near_word(word, verb_words(program))) return false;
  const auto there = posix_file_system().stat(word);
  return there && !*there;
}

CommandLine help(const Program& program, const std::vector<std::string>& arguments) {
  if (arguments.size() > 2) return mistake(program, fmt::format("help explains one verb: {} help VERB", program.name));
  if (arguments.size() == 1 || arguments[1] == kHelp) return parse(program, program.verbs.front(), {"--help"});
  const Verb* const verb = verb_named(program, arguments[1]);
  return verb != nullptr ? parse(program, *verb, {"--help"}) : no_such_verb(program, arguments[1]);
}

int run(const Program& program, std::vector<std::string> arguments) {
  CommandLine command = parse_command_line(program, std::move(arguments));
  if (!command.verb) {
    if (command.status == 0)
      print_out(command.text);
    else
      print_error(command.text.substr(0, command.text.size() - 1));
    return command.status;
  }
  if (command.is_quiet) be_quiet();
  Process process;
  const Result<int> status = guarded([&] { return command.verb->run(process); });
  process.progress().finished();  // erases the line if the work was cut short
  if (status) return *status;
  print_error(fmt::format("{}: {}", program.name, status.error().message));
  if (status.error().kind != ErrorKind::cancelled) return 1;
  if (!program.when_interrupted.empty()) print_error(fmt::format("{}: {}", program.name, program.when_interrupted));
  return kInterruptedStatus;
}

}  // namespace

std::stop_token Process::stop() {
  if (!watch_) watch_.emplace();
  return watch_->token();
}

CommandLine parse_command_line(const Program& program, std::vector<std::string> arguments) {
  if (auto text = generated_text(program, arguments)) return *std::move(text);
  if (arguments.empty()) return parse(program, program.verbs.front(), std::move(arguments));
  if (arguments.front() == kHelp) return help(program, arguments);
  if (const Verb* const named = verb_named(program, arguments.front())) {
    arguments.erase(arguments.begin());
    return parse(program, *named, std::move(arguments));
  }
  if (is_misspelt_verb(program, arguments.front())) return no_such_verb(program, arguments.front());
  return parse(program, program.verbs.front(), std::move(arguments));
}

/// Overwrites secrets in the command line as other processes see it: each byte becomes x; a file name (@FILE) stays.
void hide_secrets(const Program& program, std::span<char* const> words) {
  const auto hide = [](std::string_view shown, char* secret) {
    if (!shown.starts_with('@')) std::ranges::fill(std::span(secret, shown.size()), 'x');
  };
  for (size_t i = 0; i < words.size() && std::string_view(words[i]) != "--"; ++i) {
    const std::string_view word = words[i];
    for (const std::string& name : program.secret_options) {
      if (word == name && i + 1 < words.size()) hide(words[i + 1], words[i + 1]);
      if (word.starts_with(name + "=")) hide(word.substr(name.size() + 1), words[i] + name.size() + 1);
    }
  }
}

int run_program(const Program& program, int count, char** values) {
  occupy_standard_streams();
  end_where_memory_runs_out(program.name.c_str());
  end_where_a_mapped_file_fails(program.name.c_str());
  const auto status = guarded([&]() -> Result<int> {
    std::vector<std::string> arguments(values + std::min(count, 1), values + count);
    hide_secrets(program, std::span(values, static_cast<size_t>(count)));
    return run(program, std::move(arguments));
  });
  if (status) return finish_output(*status);
  print_error(fmt::format("{}: {}", program.name, status.error().message));
  return finish_output(1);
}

}  // namespace dspack::format
