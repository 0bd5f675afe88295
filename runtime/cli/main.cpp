// dsrun: runs mixture-of-experts models of the DeepSeek-V3 kind.
#include "format/base/guarded.h"
#include "format/cli/output.h"
#include "format/cli/process.h"
#include "runtime/cli/commands.h"

namespace {

using namespace dspack;  // NOLINT: the program's own file
using namespace dspack::runtime;

Result<int> dispatch(const CommandLine& command) {
  const auto* run = std::get_if<RunOptions>(&command);
  if (run != nullptr && !run->prompt && !run->conversation && !run->tokens.is_given()) return run_chat(*run);
  const format::InterruptWatch interrupts;
  if (run != nullptr && run->tokens.is_given()) return run_tokens(*run, interrupts.token());
  if (run != nullptr) return run_generate(*run, interrupts.token());
  if (const auto* logits = std::get_if<LogitsOptions>(&command)) return run_logits(*logits, interrupts.token());
  if (const auto* eval = std::get_if<EvalOptions>(&command)) return run_eval(*eval, interrupts.token());
  if (const auto* record = std::get_if<RecordOptions>(&command)) return run_record(*record, interrupts.token());
  if (const auto* compare = std::get_if<CompareOptions>(&command)) return run_compare(*compare, interrupts.token());
  if (const auto* replay = std::get_if<ReplayOptions>(&command)) return run_replay(*replay, interrupts.token());
  if (const auto* plan = std::get_if<PlanOptions>(&command)) return run_plan(*plan, interrupts.token());
  return run_tokenize(std::get<TokenizeOptions>(command), interrupts.token());
}

Result<int> run(const std::vector<std::string>& arguments) {
  const CommandLine command = parse_command_line(arguments);
  const auto* exit = std::get_if<Exit>(&command);
  if (exit == nullptr) return dispatch(command);
  if (exit->status == 0) {
    format::print_out(exit->text);
  } else {
    format::print_error(exit->text.substr(0, exit->text.find_last_not_of('\n') + 1));
  }
  return exit->status;
}

}  // namespace

int main(int count, char** values) {
  format::occupy_standard_streams();
  format::end_where_memory_runs_out("dsrun");
  const Result<int> status = guarded([&] { return run(std::vector<std::string>(values + 1, values + count)); });
  if (!status) format::print_error("dsrun: " + status.error().message);
  return format::finish_output(status ? *status : format::exit_status(status.error()));
}
