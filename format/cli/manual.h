// A program's manual page and its shell completions, generated from the same tables as its --help, so that they cannot
// differ from it. The build writes them to files (cmake/install.cmake); `PROGRAM --completion bash` prints them.
// Threads: pure. Errors: invalid (an unknown shell).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "format/cli/option_table.h"

namespace dspack::format {

struct VerbSheet {
  std::string name;   // empty: the default verb
  std::string about;  // one line
  std::string text;   // replaces `about` where it is not empty
  std::string footer;
  std::vector<OptionSheet> options;
};

struct ProgramSheet {
  std::string name;
  std::string version;
  std::vector<VerbSheet> verbs;  // the first is the default verb, without a name
};

/// In the markup of man(7).
[[nodiscard]] std::string manual_page(const ProgramSheet& program);

/// `shell`: bash, zsh or fish.
[[nodiscard]] Result<std::string> completion(const ProgramSheet& program, std::string_view shell);

}  // namespace dspack::format
