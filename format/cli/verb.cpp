#include "format/cli/verb.h"

#include <CLI/CLI.hpp>

#include <algorithm>

#include <fmt/format.h>

#include "dspack_version.h"
#include "format/base/result.h"
#include "format/cli/build_facts.h"
#include "format/cli/environment.h"
#include "format/cli/manual.h"
#include "format/cli/mapped_fault.h"
#include "format/cli/output.h"

namespace dspack::format {
namespace {

constexpr int kWrongUsage = 2;
constexpr char kExitStatus[] = "Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.";

/// Options with the names of their values; what they exclude is left to their texts.
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
  std::string text = fmt::format("Verbs ({} VERB --help explains one):\n", program.name);
  for (const Verb& verb : program.verbs) {
    if (!verb.name.empty()) text += help_entry(verb.name, verb.about);
  }
  return text;
}

std::string version_text(const Program& program) {
  return fmt::format("{} (dspack) {}\n{}{}", program.name, kVersion, source_and_compiler(),
                     program.build_facts ? program.build_facts() : "");
}

/// What a verb's App is made of.
struct Declared {
  std::unique_ptr<CLI::App> app;
  Invocation invocation;
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
  OptionTable table(*app);
  Invocation invocation = verb.declare(table);
  table.finish();
  if (verb.name.empty())
    app->footer(fmt::format("{}\n{}\n\n{}\n{}", verb_list(program), app->get_footer(), kEnvironmentHelp, kExitStatus));
  return {std::move(app), std::move(invocation), table.sheets()};
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
  std::ranges::reverse(arguments);  // CLI11 takes them from the back
  try {
    declared.app->parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    return {.verb = {}, .status = 0, .text = declared.app->help()};
  } catch (const CLI::Success& asked) {
    return {.verb = {}, .status = 0, .text = asked.what()};
  } catch (const CLI::ParseError& error) {
    return explained(error.what());
  }
  if (const auto complete = declared.invocation.complete(); !complete) return explained(complete.error().message);
  return {.verb = std::move(declared.invocation), .status = 0, .text = {}};
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

/// --manual and --completion SHELL, for the build and for shells; no help text names them.
std::optional<CommandLine> generated_text(const Program& program, const std::vector<std::string>& arguments) {
  if (arguments == std::vector<std::string>{"--manual"})
    return CommandLine{.verb = {}, .status = 0, .text = manual_page(sheet_of(program))};
  if (arguments.size() != 2 || arguments[0] != "--completion") return std::nullopt;
  Result<std::string> text = completion(sheet_of(program), arguments[1]);
  if (!text) return mistake(program, "--completion: " + text.error().message);
  return CommandLine{.verb = {}, .status = 0, .text = *std::move(text)};
}

/// Insertions, deletions and replacements between two short words.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j)
    row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

/// The verb that was meant: of two words where one place is expected, if the first is nearly a verb.
const Verb* misspelt(const Program& program, const std::vector<std::string>& arguments) {
  if (arguments.size() < 2 || arguments[0].starts_with('-') || arguments[1].starts_with('-')) return nullptr;
  const auto near = std::ranges::find_if(
      program.verbs, [&](const Verb& verb) { return !verb.name.empty() && distance(arguments[0], verb.name) <= 2; });
  return near == program.verbs.end() ? nullptr : &*near;
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
  Process process;
  const Result<int> status = guarded([&] { return command.verb->run(process); });
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
  const auto named = std::ranges::find_if(program.verbs, [&](const Verb& verb) {
    return !verb.name.empty() && !arguments.empty() && verb.name == arguments.front();
  });
  if (named != program.verbs.end()) {
    arguments.erase(arguments.begin());
    return parse(program, *named, std::move(arguments));
  }
  if (const Verb* meant = misspelt(program, arguments)) {
    return mistake(program,
                   fmt::format(R"(there is no verb "{}"; did you mean "{}"?)", arguments.front(), meant->name));
  }
  return parse(program, program.verbs.front(), std::move(arguments));
}

int run_program(const Program& program, int count, char** values) {
  occupy_standard_streams();
  end_where_memory_runs_out(program.name.c_str());
  end_where_a_mapped_file_fails(program.name.c_str());
  const auto status = guarded([&]() -> Result<int> { return run(program, {values + 1, values + count}); });
  if (status) return finish_output(*status);
  print_error(fmt::format("{}: {}", program.name, status.error().message));
  return finish_output(1);
}

}  // namespace dspack::format
