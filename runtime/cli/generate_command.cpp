// dsrun DIR -p TEXT: one answer.
#include "runtime/cli/command_support.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/prompt.h"

namespace dspack::runtime {

namespace {

/// What is to be answered. Read before the model: a mistake here need not wait for it.
struct Input {
  std::string prompt;
  Conversation conversation;  // instead of the prompt, if there is one
};

Result<Input> read_input(const RunOptions& options) {
  Input input;
  if (options.conversation) {
    TRY_ASSIGN(input.conversation, read_conversation(*options.conversation));
    return input;
  }
  TRY_ASSIGN(input.prompt, read_prompt(*options.prompt));
  return input;
}

Result<std::vector<uint32_t>> encode(const TextModel& text, Input input, const RunOptions& options) {
  if (!options.conversation) return encode_prompt(text, std::move(input.prompt), options.raw, options.chat);
  return encode_conversation(text, input.conversation, options.chat);
}

}  // namespace

Result<int> run_generate(const RunOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(Sampler sampler, Sampler::make(options.sampler));
  TRY_ASSIGN(Input input, read_input(options));
  TRY_ASSIGN(auto loaded, load_model(options.folder, options.load, stop));
  TRY_ASSIGN(const TextModel text, load_text(*loaded, options.chat, stop));
  TRY_ASSIGN(const std::vector<uint32_t> tokens, encode(text, std::move(input), options));

  Session session(loaded->model(), loaded->speculator());
  AnswerPrinter printer(text.tokenizer(), StopStrings(options.stop));
  const GenerateOptions generate = generate_options(*loaded, options);
  TRY_ASSIGN(const Answer answer,
             session.generate(
                 tokens, generate, sampler, [&](uint32_t token) { return printer.push(token); }, stop));
  printer.finish();
  report_end(answer.reason);
  TRY(report_stats(*loaded, session, options.stats_file));
  return answer.reason == StopReason::interrupted ? kInterruptedStatus : 0;
}

}  // namespace dspack::runtime
