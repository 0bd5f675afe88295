// dsrun: runs mixture-of-experts models of the DeepSeek-V3 kind.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "format/cli/process.h"
#include "runtime/cli/commands.h"

namespace {

using namespace dspack;  // NOLINT: the program's own file
using namespace dspack::runtime;

Result<int> dispatch(const CommandLine& command) {
  if (const auto* run = std::get_if<RunOptions>(&command); run != nullptr && !run->prompt) return run_chat(*run);
  const format::InterruptWatch interrupts;
  if (const auto* run = std::get_if<RunOptions>(&command)) return run_generate(*run, interrupts.token());
  if (const auto* logits = std::get_if<LogitsOptions>(&command)) return run_logits(*logits, interrupts.token());
  return run_tokenize(std::get<TokenizeOptions>(command), interrupts.token());
}

}  // namespace

int main(int count, char** values) {
  const CommandLine command = parse_command_line(std::vector<std::string>(values + 1, values + count));
  if (const auto* exit = std::get_if<Exit>(&command)) {
    fmt::print(exit->status == 0 ? stdout : stderr, "{}", exit->text);
    return exit->status;
  }
  const Result<int> status = dispatch(command);
  if (status) return *status;
  std::string message = status.error().message;
  std::ranges::replace(message, '\n', ' ');
  fmt::print(stderr, "dsrun: {}\n", message);
  return format::exit_status(status.error());
}
