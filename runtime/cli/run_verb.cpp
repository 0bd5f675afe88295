#include "runtime/cli/verbs.h"

#include <fmt/format.h>

#include <cstdio>

#include "format/base/size.h"
#include "format/cli/output.h"
#include "runtime/cli/answer.h"
#include "runtime/cli/answer_status.h"
#include "runtime/cli/chat.h"
#include "runtime/cli/loading.h"
#include "runtime/cli/model_options.h"
#include "runtime/cli/places.h"

namespace dspack::runtime {
namespace {

constexpr char kExamples[] = R"(Examples:
  dsrun ./ds-packed "What is the capital of France?"
  dsrun ./ds-packed -p "What is the capital of France?"
  dsrun ./ds-packed -p "Once upon a time" --raw -n 100 --temp 0.7 --seed 1
  git diff | dsrun ./ds-packed -p "What does this change?" --stats run.json
  dsrun ./ds-packed                     chat: /help lists its commands
  dsrun hf://org/ds-packed -p "Hi"      from the Hugging Face Hub; what is fetched is kept (--cache)
  dsrun ./layers-3-to-5 --absent-from origin -p "Hi"   a part of a model; the rest is read from its origin

DIR is a packed repository (reshard makes them) or an ordinary checkpoint: a folder, http(s)://..., or a repository on
the Hub, org/name[@revision] or hf://org/name[@revision]. Only the experts that the router picks are read.)";

/// The input to answer. Read before the model, so that a mistake is reported at once.
struct Input {
  std::string prompt;
  std::string system;
  Conversation conversation;  // replaces the prompt, if given
};

Result<Input> read_input(const RunOptions& options) {
  Input input;
  if (options.conversation) {
    TRY_ASSIGN(input.conversation, read_conversation(*options.conversation));
    return input;
  }
  TRY_ASSIGN(input.system, read_system(options.system));
  TRY_ASSIGN(input.prompt, read_prompt_and_pipe(*options.prompt, options.raw));
  return input;
}

Result<EncodedPrompt> encode(const TextModel& text, Input input, const RunOptions& options,
                             const std::stop_token& stop) {
  if (!options.conversation)
    return encode_prompt(text, std::move(input.prompt), options.raw, options.chat, input.system, stop);
  return encode_conversation(text, input.conversation, options.chat, stop);
}

/// The prompt's token count, by which --max-fetch is checked before any weights are read; needs only small files.
Result<uint64_t> count_tokens(const Input& input, const RunOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(const auto access, open_place(options.folder, options.load.remote, stop));
  TRY_ASSIGN(const TextModel text, load_text(access->files(), options.chat, stop));
  TRY_ASSIGN(const EncodedPrompt prompt, encode(text, input, options, stop));
  return prompt.tokens.size();
}

Result<int> run_generate(const RunOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(Sampler sampler, Sampler::make(options.sampler.over()));
  TRY_ASSIGN(Input input, read_input(options));
  LoadOptions load = options.load;
  if (load.max_fetch) {
    TRY_ASSIGN(load.prompt_tokens, count_tokens(input, options, stop));
  }
  TRY_ASSIGN(auto loaded, load_model(options.folder, load, stop));
  TRY_ASSIGN(const TextModel text, load_text(*loaded, options.chat, stop));
  TRY_ASSIGN(const EncodedPrompt prompt, encode(text, std::move(input), options, stop));

  TRY_ASSIGN(Session session, loaded->start_session());
  AnswerPrinter printer(text.tokenizer(), StopStrings(options.stop), prompt.begins_reasoning, text.end_of_reasoning());
  const GenerateOptions generate = generate_options(*loaded, options.max_tokens);
  TRY_ASSIGN(const Answer answer, generate_with_status(
                                      *loaded, session, prompt.tokens, generate, sampler,
                                      [&](uint32_t token) { return printer.push(token); }, stop));
  printer.finish();
  report_end(answer.reason);
  TRY(report_stats(*loaded, session, options.stats_file));
  return answer.reason == StopReason::interrupted ? format::kInterruptedStatus : 0;
}

/// The same with token ids, for models whose tokenizer is missing or unknown.
Result<int> run_tokens(const RunOptions& options, const std::stop_token& stop) {
  TRY_ASSIGN(Sampler sampler, Sampler::make(options.sampler.over()));
  TRY_ASSIGN(const std::vector<uint32_t> tokens, read_tokens(options.tokens));
  LoadOptions load = options.load;
  load.prompt_tokens = tokens.size();
  TRY_ASSIGN(auto loaded, load_model(options.folder, load, stop));
  note("token ids in, token ids out: no tokenizer is used");
  TRY_ASSIGN(Session session, loaded->start_session());
  const GenerateOptions generate = generate_options(*loaded, options.max_tokens);
  bool first = true;
  const auto print = [&](uint32_t token) {
    format::print_out(fmt::format("{}{}", first ? "" : " ", token));
    (void)std::fflush(stdout);  // shows the answer as it arrives; failures are noticed at the end
    first = false;
    return true;
  };
  TRY_ASSIGN(const Answer answer, generate_with_status(*loaded, session, tokens, generate, sampler, print, stop));
  format::print_out("\n");
  report_end(answer.reason);
  TRY(report_stats(*loaded, session, options.stats_file));
  return answer.reason == StopReason::interrupted ? format::kInterruptedStatus : 0;
}

Result<int> run(const RunOptions& options, format::Process& process) {
  TRY(format::try_output(options.stats_file));
  if (options.tokens.is_given()) return run_tokens(options, process.stop());
  if (options.prompt || options.conversation) return run_generate(options, process.stop());
  return run_chat(options);
}

Result<void> add_stop(std::vector<std::string>& stop, const std::string& text) {
  if (text.empty()) return invalid("the text is empty");
  stop.push_back(text);
  return {};
}

void add_prompt_options(format::OptionTable& table, RunOptions& options) {
  table.heading("Prompt and answer");
  auto question = table.add("QUESTION", "", options.question, "What to answer, in quotes; the same as -p");
  auto prompt = table.add("-p,--prompt", "TEXT", options.prompt,
                          "What to answer; - reads it from standard input. Text that is piped or redirected beside it "
                          "(cat FILE | dsrun DIR -p \"Sum up:\") follows it, below an empty line");
  auto conversation = table.add("--chat", "FILE.json", options.conversation,
                                "A conversation to answer, as JSON; - reads it from standard input");
  conversation.excludes(prompt).excludes(question);
  prompt.excludes(question);
  auto tokens =
      add_tokens(table, options.tokens, "The prompt as token ids; the answer is ids, too, and no tokenizer is needed");
  tokens.excludes(prompt).excludes(conversation).excludes(question);
  table.flag("--raw", options.raw, "Continue the prompt as it is, without the chat template");
  add_chat_options(table, options.chat);
  table.add("--system", "TEXT|@FILE", options.system, "The system message of a prompt or a chat")
      .excludes(tokens)
      .excludes(conversation);
  table.flag("--no-history", options.no_history, "Neither read nor keep what is typed in chats on a terminal");
  table
      .add("--session", "FILE", options.session,
           "A chat to resume: loaded from this file if it is there, and saved in it at the end")
      .excludes(prompt)
      .excludes(question)
      .excludes(tokens)
      .excludes(conversation);
  table.add("-n", "N", options.max_tokens, format::count_between(0U, UINT32_MAX),
            "Maximum length of the answer in tokens (default: until it ends)");
  table
      .each(
          "--stop", "TEXT", [&options](const std::string& text) { return add_stop(options.stop, text); },
          "End the answer before this text. May be repeated")
      .excludes(tokens);
}

void add_run_options(format::OptionTable& table, RunOptions& options) {
  table.explain("Runs mixture-of-experts models of the DeepSeek-V3 kind.");
  table.footer(kExamples);
  add_folder(table, options.folder);
  add_prompt_options(table, options);
  add_sampling_options(table, options.sampler);
  add_draft_options(table, options.drafts);
  options.load.device.precision.reset();  // --precision auto
  add_model_options(table, options.load);
  add_route_options(table, options.load);
  table.add("--stats", "FILE.json", options.stats_file, "Write speed, bytes, experts read and files opened for them");
  table.heading("Places");
  table.add(
      "--max-fetch", "BYTES", options.load.max_fetch,
      [](std::string_view text) { return format::parse_large_size(text); },
      "Upper bound on the bytes of routed experts read from disk or network for a prompt and its answer, re-reads "
      "included: a prompt that is expected to need more is refused, and a run that exceeds it ends with status 1");
  table.dev(
      "prefetch", "auto|off|on", options.load.prefetch,
      format::one_of<PrefetchMode>(
          {{"auto", PrefetchMode::automatic}, {"off", PrefetchMode::off}, {"on", PrefetchMode::on}}),
      "read experts that the next layer is likely to pick while the disk is idle; auto (default): as long as it is "
      "measured to pay");
}

}  // namespace

Result<void> RunOptions::complete() {
  load.speculation = drafts.chosen();
  if (question) prompt = std::move(question);
  if (raw && !prompt) return invalid("--raw needs a prompt to continue; give one with -p");
  if (raw && !system.empty()) return invalid("--raw has no system message; leave --system out");
  return check_model_options(load);
}

format::Verb run_verb() {
  format::Verb verb = format::make_verb("", "Answer a prompt, or chat where none is given", add_run_options, run);
  verb.aliases = {"run", "chat"};
  return verb;
}

}  // namespace dspack::runtime
