// A program's manual page and its completions for shells, made of the same tables that its --help prints, so that they
// cannot differ from it. The build writes them to files (cmake/install.cmake); `PROGRAM --completion bash` prints them.
// Threads: pure. Errors: invalid, a shell that is not known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "format/cli/option_table.h"

namespace dspack::format {

struct VerbSheet {
  std::string name;   // empty: the verb of a command line that names none
  std::string about;  // a line
  std::string text;   // in place of the line, where the verb has more to say
  std::string footer;
  std::vector<OptionSheet> options;
};

struct ProgramSheet {
  std::string name;
  std::string version;
  std::vector<VerbSheet> verbs;  // the first has no name
};

/// In the language of man(7).
[[nodiscard]] std::string manual_page(const ProgramSheet& program);

/// `shell`: bash, zsh or fish.
[[nodiscard]] Result<std::string> completion(const ProgramSheet& program, std::string_view shell);

}  // namespace dspack::format
