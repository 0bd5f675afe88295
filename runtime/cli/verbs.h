// dsrun's command line: the options of each verb, and the table of verbs. Each verb's action is in the file of its
// name; verbs.cpp has what two of them share.
// Threads: main; options are plain values. Errors: those of the libraries; the runner prints them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "format/cli/cache_verb.h"
#include "format/cli/verb.h"
#include "kernels/device_facts.h"
#include "runtime/access/place.h"
#include "runtime/budget/memory_options.h"
#include "runtime/budget/supposed_rates.h"
#include "runtime/cli/generation_options.h"
#include "runtime/cli/model_options.h"
#include "runtime/cli/prompt.h"
#include "runtime/generate/constraint_compiler.h"
#include "runtime/generate/loaded_model.h"
#include "runtime/generate/sampler.h"
#include "runtime/serve/http_server.h"
#include "runtime/weights/trace.h"

namespace dspack::runtime {

/// dsrun DIR [QUESTION | -p TEXT | --chat FILE | --tokens IDS]; without any of these: a chat
struct RunOptions {
  std::string folder;
  LoadOptions load;
  std::optional<std::string> question;      // the argument; complete() turns it into the prompt
  std::optional<std::string> prompt;        // "-": standard input
  std::optional<std::string> conversation;  // a JSON file, "-": standard input
  TokenArgument tokens;                     // the prompt as token ids; then the answer is printed as ids, too
  bool raw = false;                         // continue the prompt unchanged, without the chat template
  ChatOptions chat;
  std::optional<uint32_t> max_tokens;
  SamplingFlags sampler;
  std::string system;             // the system message, or @FILE; empty: none
  bool no_history = false;        // do not read or keep lines typed in a chat
  std::string session;            // file of a chat to resume; empty: none
  DraftOptions drafts;            // complete() puts the choice into `load`
  std::vector<std::string> stop;  // stop strings; none is empty
  std::string stats_file;         // empty: none

  /// Errors: invalid, options that contradict each other.
  [[nodiscard]] Result<void> complete();
};

/// dsrun logits DIR: the logits after every token, as a safetensors file.
struct LogitsOptions {
  std::string folder;
  LoadOptions load;
  TokenArgument tokens;
  std::string out;
  uint32_t chunk = 0;  // tokens per pass; 0: as many as fit
  std::string stats_file;

  [[nodiscard]] Result<void> complete() { return check_model_options(load); }
};

/// dsrun tokenize DIR: the token ids of a text, a conversation or many texts, and back.
struct TokenizeOptions {
  std::string folder;
  RemoteAccess remote;
  // Exactly one of the following four.
  std::optional<std::string> prompt;        // "-": standard input
  std::optional<std::string> conversation;  // a JSON file; "-": standard input
  std::optional<std::string> texts_file;
  std::optional<std::string> ids_file;
  ChatOptions chat;
  bool ends_after_message = false;  // do not ask for an answer
  bool as_json = false;
  bool as_text = false;  // print the template's output instead of ids

  /// Errors: invalid, options that contradict each other.
  [[nodiscard]] Result<void> complete() const;
};

/// dsrun eval DIR: the perplexity of a text.
struct EvalOptions {
  std::string folder;
  LoadOptions load;
  std::string text_file;
  uint32_t stride = 0;    // 0: windows do not overlap
  std::string json_file;  // empty: none

  [[nodiscard]] Result<void> complete() { return check_model_options(load); }
};

// One pass of the model that is traced module by module, by record and compare: its tokens, and how it is run.

/// The tokens of a pass, as ids or as text.
struct PassTokens : TokenArgument {
  std::optional<std::string> prompt;  // "-": standard input
  bool raw = false;
};

/// --tokens, -p and --raw.
void add_pass_tokens(format::OptionTable& table, PassTokens& tokens);
/// The options of the model.
void add_pass_model_options(format::OptionTable& table, LoadOptions& load);

/// Empty: no tokens were given.
[[nodiscard]] Result<std::vector<uint32_t>> tokens_of(const PassTokens& asked, const std::string& folder,
                                                      const RemoteAccess& remote, const std::stop_token& stop);

/// Loads the model with room for exactly these tokens, unless --ctx is given. Errors: also invalid (more tokens than
/// the model takes at once).
[[nodiscard]] Result<std::unique_ptr<LoadedModel>> load_for(const std::string& folder, LoadOptions options,
                                                            std::span<const uint32_t> tokens,
                                                            const std::stop_token& stop);

/// Runs one pass over the tokens, and reports it to `trace`.
[[nodiscard]] Result<void> run_traced(LoadedModel& loaded, std::span<const uint32_t> tokens, Trace& trace,
                                      const std::stop_token& stop);

/// dsrun record DIR: the inputs and outputs of every module of the model, as a safetensors file.
struct RecordOptions {
  std::string folder;
  LoadOptions load;
  PassTokens tokens;
  std::string out;
  std::vector<std::string> patterns;  // for module names; empty: all modules

  /// Errors: invalid, options that contradict each other, or no tokens.
  [[nodiscard]] Result<void> complete();
};

/// dsrun compare DIR: the model's modules against a recording of them.
struct CompareOptions {
  std::string folder;
  LoadOptions load;
  PassTokens tokens;  // unset: those of the recording
  std::string reference;
  std::optional<double> tolerance;
  bool inject = false;
  std::string json_file;  // empty: none

  [[nodiscard]] Result<void> complete();
};

/// A number of slots: a count, a share of all experts, or an amount of memory.
struct SlotCount {
  Amount amount;
  bool is_memory = false;  // bytes, not experts

  /// "1856", "12.5%", "64GB". Errors: invalid.
  [[nodiscard]] static Result<SlotCount> parse(std::string_view text);
  /// At least 1. `expert_bytes`: size of a slot.
  [[nodiscard]] uint64_t slots(uint64_t experts, uint64_t expert_bytes) const;
};

/// dsrun replay TRACE: replays recorded routes with every eviction policy.
struct ReplayOptions {
  std::string trace;
  std::vector<SlotCount> slots;
  std::string policy;  // empty: all
  bool json = false;
  std::string html;  // output file, "-" for stdout; empty: no page
};

/// Suppositions of a plan that replace this machine's hardware and the model's files.
struct WhatIf {
  bool config_only = false;               // compute sizes from config.json alone
  std::vector<uint64_t> gpu_memory = {};  // memory of each supposed GPU; empty: none is supposed
  SupposedRates rates;

  [[nodiscard]] Medium medium() const { return rates.network ? Medium::network : Medium::disk; }
};

/// dsrun plan DIR: whether a model fits, where it would be placed, and its expected speed.
struct PlanOptions {
  std::string folder;
  LoadOptions load;
  DraftOptions drafts;  // complete() puts the choice into `load`
  uint32_t prompt_tokens = 128;
  std::optional<double> hit_rate;  // hit rate of decoding, in percent; unset: assumed
  bool measure = false;            // again, whatever is remembered
  double least_share = 90;         // percent of the cores that a trial must get to be remembered
  bool json = false;
  WhatIf what_if;

  /// Errors: invalid, options that contradict each other.
  [[nodiscard]] Result<void> complete();
};

/// dsrun bench DIR: tokens per second, compared with the machine's limits.
struct BenchVerbOptions {
  std::string folder;
  LoadOptions load;
  DraftOptions drafts;                    // complete() puts the choice into `load`
  std::vector<uint32_t> prompts = {512};  // prompt tokens of each test
  std::vector<uint32_t> answers = {128};
  std::vector<uint32_t> depths = {0};
  uint32_t repetitions = 5;
  bool no_warmup = false;
  bool repeats_depth = false;
  std::string text_file;  // empty: random tokens
  bool as_json = false;

  /// Errors: invalid, options that contradict each other, or no test.
  [[nodiscard]] Result<void> complete();
};

/// The prefix cache: where a server keeps conversations that have lost their place.
struct CacheOptions {
  uint64_t ram_bytes = 0;
  std::string disk;                    // a folder; empty: none
  std::optional<uint64_t> disk_bytes;  // unset: as much as leaves enough of the disk free
};

/// dsrun serve DIR: serves the model over HTTP.
struct ServeOptions {
  std::string folder;
  LoadOptions load;
  DraftOptions drafts;  // complete() puts the choice into `load`
  std::string allow_origin;
  ChatOptions chat;
  SamplingFlags sampler;
  std::string host = "127.0.0.1";
  uint16_t port = 8080;
  std::optional<std::string> api_key = {};  // as given: the key, or @FILE
  std::string model_name;                   // empty: the folder's name
  uint32_t parallel = 1;                    // concurrent answers
  uint32_t waiting = 64;                    // limit of requests that wait for a place
  HttpLimits limits;
  CacheOptions cache;

  /// Errors: invalid, options that contradict each other.
  [[nodiscard]] Result<void> complete();
};

/// Without a verb: answers a prompt, or chats if there is none.
[[nodiscard]] format::Verb run_verb();
[[nodiscard]] format::Verb logits_verb();
[[nodiscard]] format::Verb tokenize_verb();
[[nodiscard]] format::Verb eval_verb();
[[nodiscard]] format::Verb record_verb();
[[nodiscard]] format::Verb compare_verb();
[[nodiscard]] format::Verb replay_verb();
[[nodiscard]] format::Verb plan_verb();
[[nodiscard]] format::Verb bench_verb();
[[nodiscard]] format::Verb serve_verb();

/// Options of llama.cpp, vLLM and SGLang that users may try here, with dsrun's replacements.
[[nodiscard]] std::vector<format::PeerOption> peer_options();

/// Facts on this build and this machine, for --version.
[[nodiscard]] inline std::string dsrun_facts() {
  return kernels::device_facts() + "structured output " +
         (ConstraintCompiler::is_available() ? "by xgrammar\n" : "not in this build (DSPACK_XGRAMMAR=OFF)\n");
}

[[nodiscard]] inline format::Program dsrun_program() {
  return {.name = "dsrun",
          .verbs = {run_verb(), logits_verb(), tokenize_verb(), eval_verb(), record_verb(), compare_verb(),
                    replay_verb(), plan_verb(), bench_verb(), serve_verb(), format::cache_verb()},
          .when_interrupted = {},
          .build_facts = dsrun_facts,
          .peer_options = peer_options(),
          .secret_options = {"--api-key"}};
}

}  // namespace dspack::runtime
