#include "format/cli/manual.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dspack::format {
namespace {

/// Escapes text so that man(7) prints it literally: hyphens stay hyphens, and no line is taken for a request.
std::string roff(std::string_view text) {
  std::string out;
  bool begins_line = true;
  for (const char c : text) {
    if (begins_line && (c == '.' || c == '\'')) out += "\\&";
    switch (c) {
      case '\\': out += "\\e"; break;
      case '-': out += "\\-"; break;
      case '~': out += "\\(ti"; break;
      case '^': out += "\\(ha"; break;
      default: out += c;
    }
    begins_line = c == '\n';
  }
  return out;
}

/// Text whose lines are not filled: examples and tables.
std::string literal(std::string_view text) {
  return fmt::format(".nf\n{}\n.fi\n", roff(text));
}

std::string option_entry(const OptionSheet& option) {
  std::string names = fmt::format("\\fB{}\\fR", roff(fmt::format("{}", fmt::join(option.names, ", "))));
  if (!option.type.empty()) names += fmt::format(" \\fI{}\\fR", roff(option.type));
  if (!option.fallback.empty()) names += roff(" (default: " + option.fallback + ")");
  return fmt::format(".TP\n{}{}\n{}\n", names, option.required ? " (required)" : "", roff(option.about));
}

std::string option_list(const VerbSheet& verb) {
  std::string text;
  std::string heading;
  for (const OptionSheet& option : verb.options) {
    if (option.heading != heading) text += fmt::format(".PP\n.B {}\n", roff(heading = option.heading));
    text += option_entry(option);
  }
  return text;
}

std::string synopsis(const ProgramSheet& program, const VerbSheet& verb) {
  std::string line = fmt::format(".B {}{}{}\n[\\fIOPTIONS\\fR]", program.name, verb.name.empty() ? "" : " ", verb.name);
  for (const OptionSheet& option : verb.options) {
    if (option.names.front().starts_with('-')) continue;
    line += option.required ? fmt::format(" \\fI{}\\fR", roff(option.names.front()))
                            : fmt::format(" [\\fI{}\\fR]", roff(option.names.front()));
  }
  return line + "\n.br\n";
}

/// The kinds of values that completion offers after an option.
enum class Value { none, file, folder, words, any };

struct Completed {
  Value kind = Value::any;
  std::vector<std::string> words;
};

Completed value_of(const OptionSheet& option) {
  const std::string& type = option.names.front().starts_with('-') ? option.type : option.names.front();
  if (type.empty()) return {Value::none, {}};
  if (type.starts_with("FILE") || type.find("|FILE") != std::string::npos || type.find("@FILE") != std::string::npos)
    return {Value::file, {}};
  if (type == "DIR" || type == "SOURCE" || type == "PLACE") return {Value::folder, {}};
  const bool are_words = type.find('|') != std::string::npos && std::ranges::all_of(type, [](char c) {
                           return c == '|' || c == '-' || (c >= 'a' && c <= 'z');
                         });
  if (!are_words) return {Value::any, {}};
  Completed completed{Value::words, {}};
  for (size_t at = 0; at <= type.size();) {
    const size_t end = std::min(type.find('|', at), type.size());
    completed.words.push_back(type.substr(at, end - at));
    at = end + 1;
  }
  return completed;
}

bool has_name(const OptionSheet& option) {
  return option.names.front().starts_with('-');
}

std::vector<std::string> verb_names(const ProgramSheet& program) {
  std::vector<std::string> names;
  for (const VerbSheet& verb : program.verbs) {
    if (!verb.name.empty()) names.push_back(verb.name);
  }
  return names;
}

std::string bash_values(const VerbSheet& verb) {
  std::string text;
  for (const OptionSheet& option : verb.options) {
    if (!has_name(option)) continue;
    const Completed value = value_of(option);
    if (value.kind == Value::none) continue;
    std::string words = "return";
    if (value.kind == Value::file) words = R"(_dspack_files "$word"; return)";
    if (value.kind == Value::folder) words = R"(_dspack_folders "$word"; return)";
    if (value.kind == Value::words)
      words = fmt::format(R"(COMPREPLY=($(compgen -W "{}" -- "$word")); return)", fmt::join(value.words, " "));
    std::vector<std::string> patterns;
    for (const std::string& name : option.names)
      patterns.push_back((verb.name.empty() ? "run" : verb.name) + ":" + name);
    text += fmt::format("    {}) {} ;;\n", fmt::join(patterns, " | "), words);
  }
  return text;
}

std::string bash_completion(const ProgramSheet& program) {
  std::string values;
  std::string options;
  for (const VerbSheet& verb : program.verbs) {
    values += bash_values(verb);
    std::vector<std::string> names;
    for (const OptionSheet& option : verb.options) {
      if (has_name(option)) names.insert(names.end(), option.names.begin(), option.names.end());
    }
    options += fmt::format("    {}) options='{}' ;;\n", verb.name.empty() ? "run" : verb.name, fmt::join(names, " "));
  }
  return fmt::format(R"(# Completion of {0} for bash, made from its table of options.
_dspack_files() {{ compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$1"); }}
_dspack_folders() {{ compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$1"); }}
_{0}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} verb=run options=
  case " {1} " in *" ${{COMP_WORDS[1]}} "*) [ "$COMP_CWORD" -gt 1 ] && verb=${{COMP_WORDS[1]}} ;; esac
  COMPREPLY=()
  case "$verb:$before" in
{2}  esac
  case $verb in
{3}  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  else
    _dspack_folders "$word"
    [ "$COMP_CWORD" -eq 1 ] && COMPREPLY+=($(compgen -W "{1}" -- "$word"))
  fi
}}
complete -F _{0} {0}
)",
                     program.name, fmt::join(verb_names(program), " "), values, options);
}

/// In single quotes, for zsh and fish; the characters in `escaped` get a backslash.
std::string quoted(std::string_view text, std::string_view escaped) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (escaped.find(c) != std::string_view::npos) out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + "'";
}

std::string zsh_completion(const ProgramSheet& program) {
  std::string cases;
  for (const VerbSheet& verb : program.verbs) {
    std::string lines;
    for (const OptionSheet& option : verb.options) {
      if (!has_name(option)) continue;
      const Completed value = value_of(option);
      std::string action = value.kind == Value::none ? "" : ":" + option.type + ":";
      std::ranges::replace(action, '\'', ' ');
      if (value.kind == Value::file) action = ":file:_files";
      if (value.kind == Value::folder) action = ":folder:_files -/";
      if (value.kind == Value::words) action = fmt::format(":value:({})", fmt::join(value.words, " "));
      if (value.kind == Value::any) action = ":value: ";
      for (const std::string& name : option.names) {
        std::string about = quoted(option.about, R"([]:\)");
        lines += fmt::format(" \\\n      '*{}['{}']{}'", name, about, action);
      }
    }
    cases +=
        fmt::format("    {}) _arguments -s{} '*:place:_files -/' ;;\n", verb.name.empty() ? "run" : verb.name, lines);
  }
  std::string verbs;
  for (const VerbSheet& verb : program.verbs) {
    if (!verb.name.empty()) verbs += fmt::format(" {}", quoted(verb.name + ":" + verb.about, ""));
  }
  return fmt::format(R"(#compdef {0}
# Completion of {0} for zsh, made from its table of options.
_{0}() {{
  local -a verbs=({1} )
  local verb=run
  if (( CURRENT > 2 && ${{verbs[(I)${{words[2]}}:*]}} )); then
    verb=${{words[2]}}
    shift words
    (( CURRENT-- ))
  elif (( CURRENT == 2 )); then
    _describe verb verbs
  fi
  case $verb in
{2}  esac
}}
if [ "$funcstack[1]" = _{0} ]; then _{0} "$@"; else compdef _{0} {0}; fi
)",
                     program.name, verbs, cases);
}

std::string fish_completion(const ProgramSheet& program) {
  std::string text = fmt::format("# Completion of {} for fish, made from its table of options.\n", program.name);
  const std::string all = fmt::format("{}", fmt::join(verb_names(program), " "));
  for (const VerbSheet& verb : program.verbs) {
    std::string where = fmt::format("not __fish_seen_subcommand_from {}", all);
    if (!verb.name.empty()) {
      text += fmt::format("complete -c {} -n __fish_is_first_arg -a {} -d {}\n", program.name, verb.name,
                          quoted(verb.about, R"(\)"));
      where = "__fish_seen_subcommand_from " + verb.name;
    }
    for (const OptionSheet& option : verb.options) {
      if (!has_name(option)) continue;
      const Completed value = value_of(option);
      std::string names;
      for (const std::string& name : option.names)
        names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      std::string values = value.kind == Value::none ? "" : value.kind == Value::file ? " -r -F" : " -x";
      if (value.kind == Value::folder) values += " -a '(__fish_complete_directories)'";
      if (value.kind == Value::words) values += fmt::format(" -a '{}'", fmt::join(value.words, " "));
      text += fmt::format("complete -c {} -n '{}'{}{} -d {}\n", program.name, where, names, values,
                          quoted(option.about, R"(\)"));
    }
  }
  return text;
}

}  // namespace

std::string manual_page(const ProgramSheet& program) {
  const VerbSheet& plain = program.verbs.front();
  std::string text = fmt::format(".TH {} 1 \"\" \"dspack {}\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n", program.name,
                                 program.version, program.name, roff(plain.about));
  for (const VerbSheet& verb : program.verbs)
    text += synopsis(program, verb);
  text += fmt::format(".SH DESCRIPTION\n{}.SH OPTIONS\n{}", literal(plain.text), option_list(plain));
  for (const VerbSheet& verb : program.verbs) {
    if (verb.name.empty()) continue;
    text += fmt::format(".SH {} {}\n{}{}", program.name, verb.name, literal(verb.text.empty() ? verb.about : verb.text),
                        option_list(verb));
    if (!verb.footer.empty()) text += literal(verb.footer);
  }
  return text + fmt::format(".SH EXAMPLES AND NOTES\n{}", literal(plain.footer));
}

Result<std::string> completion(const ProgramSheet& program, std::string_view shell) {
  if (shell == "bash") return bash_completion(program);
  if (shell == "zsh") return zsh_completion(program);
  if (shell == "fish") return fish_completion(program);
  return none_of(shell, {"bash", "zsh", "fish"});
}

}  // namespace dspack::format
