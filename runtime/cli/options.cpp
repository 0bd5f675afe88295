#include "runtime/cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "dspack_version.h"
#include "format/cli/process.h"
#include "runtime/cli/fetch_options.h"
#include "runtime/cli/mtp_options.h"
#include "runtime/cli/option_support.h"
#include "runtime/cli/prefetch_options.h"
#include "runtime/cli/remote_options.h"

namespace dspack::runtime {

namespace {

constexpr std::array<std::string_view, 7> kVerbs = {"logits",  "tokenize", "eval", "record",
                                                    "compare", "replay",   "plan"};

constexpr char kExamples[] = R"(Verbs:
  dsrun DIR ...           answer a prompt, or chat where none is given
  dsrun logits DIR ...    write the logits after every token (dsrun logits --help)
  dsrun tokenize DIR ...  print the token ids of a text or conversation (dsrun tokenize --help)
  dsrun eval DIR ...      measure the perplexity of a text (dsrun eval --help)
  dsrun record DIR ...    write what every module makes (dsrun record --help)
  dsrun compare DIR ...   compare every module with a recording (dsrun compare --help)
  dsrun replay TRACE ...  judge eviction policies on recorded routes (dsrun replay --help)
  dsrun plan DIR ...      say what will lie where and how fast it will run (dsrun plan --help)

Examples:
  dsrun ./ds-packed -p "What is the capital of France?"
  dsrun ./ds-packed -p "Once upon a time" --raw -n 100 --temp 0.7 --seed 1
  git diff | dsrun ./ds-packed -p - --stats run.json
  dsrun ./ds-packed                     chat: /help lists its commands
  dsrun hf://org/ds-packed -p "Hi"      from the Hugging Face Hub; what is fetched is kept (--cache)
  dsrun ./layers-3-to-5 --absent-from origin -p "Hi"
                                        a part of a model; what it lacks comes from where it was made from

DIR is a packed repository (reshard makes them) or an ordinary checkpoint: a folder, http(s)://..., or a repository on
the Hub, org/name[@revision] or hf://org/name[@revision]. Only the experts that the router picks are read.
)";

constexpr char kExitStatus[] = "Status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.\n";

CommandLine parse_run(std::vector<std::string> arguments) {
  RunOptions options;
  auto app = make_app("dsrun", "Runs mixture-of-experts models of the DeepSeek-V3 kind.");
  app->footer(fmt::format("{}\n{}\n{}", kExamples, format::kEnvironmentHelp, kExitStatus));
  app->set_version_flag("--version", kVersion, "Print the version");
  add_folder(*app, options.folder);
  auto* prompt = app->add_option("-p,--prompt", options.prompt, "What to answer; - reads it from standard input");
  prompt->type_name("TEXT");
  auto* conversation = app->add_option("--chat", options.conversation,
                                       "A conversation to answer, as JSON; - reads it from standard input");
  conversation->excludes(prompt)->type_name("FILE.json");
  auto* tokens =
      add_tokens(*app, options.tokens, "The prompt as token ids; the answer is ids, too, and no tokenizer is needed");
  tokens->excludes(prompt)->excludes(conversation);
  app->add_flag("--raw", options.raw, "Continue the prompt as it is instead of putting it as a question");
  std::optional<std::string> thinking;
  add_chat_options(*app, options.chat, thinking);
  app->add_option("-n", options.max_tokens, "Most tokens of the answer (default: until it ends)")->type_name("N");
  add_sampling_options(*app, options.sampler);
  app->add_option("--stop", options.stop, "End the answer before this text. May be repeated")
      ->excludes(tokens)
      ->allow_extra_args(false)
      ->check(
          CLI::Validator([](std::string& text) { return std::string(text.empty() ? "the text is empty" : ""); }, ""))
      ->type_name("TEXT");
  MtpFlags mtp;
  add_mtp_options(*app, mtp);
  add_prefetch_option(*app, options.load.prefetch);
  add_fetch_option(*app, options.load.max_fetch);
  add_load_options(*app, options.load);
  add_policy_options(*app, options.load);
  app->add_option("--stats", options.stats_file, "Write speed, bytes, experts read and files opened for them")
      ->type_name("FILE.json");
  if (auto exit = parse(*app, std::move(arguments))) return *exit;
  if (thinking) options.chat.thinking = *thinking == "on";
  options.load.speculation = speculation_options(mtp);
  if (options.raw && !options.prompt) {
    return Exit{.status = 2, .text = "dsrun: --raw needs a prompt to continue; give one with -p\n"};
  }
  return options;
}

CommandLine parse_logits(std::vector<std::string> arguments) {
  LogitsOptions options;
  auto app = make_app("dsrun logits", "Writes the logits after every token of a prompt as a safetensors file.");
  app->footer(
      "Example:\n  dsrun logits ./ds-packed --tokens 0,5,17 --out logits.safetensors\n\n"
      "The file holds one F32 tensor \"logits\" [tokens, vocab].");
  add_folder(*app, options.folder);
  add_tokens(*app, options.tokens, "Token ids, with commas between")->required();
  app->add_option("--out", options.out, "File to write")->required()->type_name("FILE.safetensors");
  app->add_option("--chunk", options.chunk, "Tokens that go through the model at once; results do not depend on it")
      ->check(between(1U, 1U << 26U))
      ->type_name("N");
  add_load_options(*app, options.load);
  add_policy_options(*app, options.load);
  app->add_option("--stats", options.stats_file, "As for dsrun DIR")->type_name("FILE.json");
  if (auto exit = parse(*app, std::move(arguments))) return *exit;
  return options;
}

CommandLine parse_tokenize(std::vector<std::string> arguments) {
  TokenizeOptions options;
  auto app = make_app("dsrun tokenize",
                      "Prints the token ids of a text or a conversation. Special tokens in it are recognised; none is "
                      "added but by the chat template.");
  app->footer(
      "Examples:\n  dsrun tokenize ./ds-packed -p \"Hello world\"\n"
      "  dsrun tokenize ./ds-packed --chat talk.json --text\n\n"
      "talk.json: {\"messages\": [...], \"tools\": [...]} as in OpenAI's chat API, or the list of messages alone.");
  bool json = false;
  bool text = false;
  bool no_question = false;
  add_folder(*app, options.folder);
  add_remote_options(*app, options.remote);
  auto* what = app->add_option_group("What", "One of these");
  what->add_option("-p,--prompt", options.prompt, "The text; - reads it from standard input")->type_name("TEXT");
  auto* conversation =
      what->add_option("--chat", options.conversation, "A conversation; - reads it from standard input");
  conversation->type_name("FILE.json");
  what->add_option("--file", options.texts_file, "A file of texts with NUL bytes between; one line of ids for each")
      ->type_name("FILE");
  what->add_option("--decode", options.ids_file, "A file with ids on each line; one JSON string of text for each")
      ->type_name("FILE");
  what->require_option(1);
  std::optional<std::string> thinking;
  add_chat_options(*app, options.chat, thinking);
  app->add_flag("--no-question", no_question, "End after the last message, do not ask for an answer")
      ->needs(conversation);
  auto* as_json = app->add_flag("--json", json, R"(A list of {"id", "text"} instead of ids)");
  app->add_flag("--text", text, "The conversation as the template writes it instead of ids")
      ->excludes(as_json)
      ->needs(conversation);
  if (auto exit = parse(*app, std::move(arguments))) return *exit;
  if (thinking) options.chat.thinking = *thinking == "on";
  options.add_generation_prompt = !no_question;
  options.output = json   ? TokenizeOptions::Output::json
                   : text ? TokenizeOptions::Output::text
                          : TokenizeOptions::Output::ids;
  return options;
}

// Number of insertions, deletions and replacements between two short words.
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

// `dsrun logit DIR`: two words where one folder is expected, and the first is nearly a verb.
std::optional<Exit> misspelt_verb(const std::vector<std::string>& arguments) {
  if (arguments.size() < 2 || arguments[0].starts_with('-') || arguments[1].starts_with('-')) return std::nullopt;
  for (const std::string_view verb : kVerbs) {
    if (distance(arguments[0], verb) > 2) continue;
    return Exit{.status = 2,
                .text = fmt::format(R"(dsrun: there is no verb "{}"; did you mean "{}"?)", arguments[0], verb) + "\n"};
  }
  return std::nullopt;
}

}  // namespace

CommandLine parse_command_line(std::vector<std::string> arguments) {
  const std::string first = arguments.empty() ? "" : arguments.front();
  if (std::ranges::find(kVerbs, first) != kVerbs.end()) {
    arguments.erase(arguments.begin());
    if (first == "logits") return parse_logits(std::move(arguments));
    if (first == "tokenize") return parse_tokenize(std::move(arguments));
    if (first == "eval") return parse_eval(std::move(arguments));
    if (first == "record") return parse_record(std::move(arguments));
    if (first == "compare") return parse_compare(std::move(arguments));
    if (first == "plan") return parse_plan(std::move(arguments));
    return parse_replay(std::move(arguments));
  }
  if (auto exit = misspelt_verb(arguments)) return *exit;
  return parse_run(std::move(arguments));
}

}  // namespace dspack::runtime
