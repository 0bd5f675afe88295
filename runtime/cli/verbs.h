// dsrun's command line: the options of each verb, and the table of verbs. What a verb does with its options is in the
// file of its name. Threads: main; options are plain values. Errors: those of the libraries; the runner prints them.
#pragma once

#include <cstdint>
#include <optional>
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
#include "runtime/cli/peer_options.h"
#include "runtime/cli/prompt.h"
#include "runtime/cli/traced_pass.h"
#include "runtime/generate/constraint_compiler.h"
#include "runtime/generate/loaded_model.h"
#include "runtime/generate/sampler.h"
#include "runtime/serve/http_server.h"

namespace dspack::runtime {

/// dsrun DIR [QUESTION | -p TEXT | --chat FILE | --tokens IDS]; none of them: a chat
struct RunOptions {
  std::string folder;
  LoadOptions load;
  std::optional<std::string> question;      // as an argument; complete() makes it the prompt
  std::optional<std::string> prompt;        // "-": standard input
  std::optional<std::string> conversation;  // a file of JSON, "-": standard input
  TokenArgument tokens;                     // the prompt as token ids; then the answer is printed as ids, too
  bool raw = false;                         // continue the prompt as it is, without the chat template
  ChatOptions chat;
  std::optional<uint32_t> max_tokens;
  SamplingFlags sampler;
  std::string system;             // the system message, or @ and its file; empty: none
  bool no_history = false;        // of what is typed in a chat
  std::string session;            // the file of a chat; empty: none
  DraftOptions drafts;            // `load` has what comes of them
  std::vector<std::string> stop;  // texts that end an answer; none is empty
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
  uint32_t chunk = 0;  // tokens at once; 0: as many as fit
  std::string stats_file;

  [[nodiscard]] Result<void> complete() { return check_model_options(load); }
};

/// dsrun tokenize DIR: the token ids of a text, a conversation or many texts, and back.
struct TokenizeOptions {
  std::string folder;
  RemoteAccess remote;
  // Exactly one of these four.
  std::optional<std::string> prompt;        // "-": standard input
  std::optional<std::string> conversation;  // a file of JSON; "-": standard input
  std::optional<std::string> texts_file;
  std::optional<std::string> ids_file;
  ChatOptions chat;
  bool ends_after_message = false;  // and does not ask for an answer
  bool as_json = false;
  bool as_text = false;  // what the template writes instead of ids

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

/// dsrun record DIR: what every module of the model reads and makes, as a safetensors file.
struct RecordOptions {
  std::string folder;
  LoadOptions load;
  PassTokens tokens;
  std::string out;
  std::vector<std::string> patterns;  // of modules; empty: all

  /// Errors: invalid, options that contradict each other, or nothing to run.
  [[nodiscard]] Result<void> complete();
};

/// dsrun compare DIR: the model's modules against a recording of them.
struct CompareOptions {
  std::string folder;
  LoadOptions load;
  PassTokens tokens;  // none: those of the recording
  std::string reference;
  std::optional<double> tolerance;
  bool inject = false;
  std::string json_file;  // empty: none

  [[nodiscard]] Result<void> complete();
};

/// A number of slots: as such, as a share of all experts, or as memory.
struct SlotCount {
  Amount amount;
  bool is_memory = false;  // bytes, not experts

  /// "1856", "12.5%", "64GB". Errors: invalid.
  [[nodiscard]] static Result<SlotCount> parse(std::string_view text);
  /// At least 1. `expert_bytes` is what a slot takes.
  [[nodiscard]] uint64_t slots(uint64_t experts, uint64_t expert_bytes) const;
};

/// dsrun replay TRACE: recorded routes through every eviction policy.
struct ReplayOptions {
  std::string trace;
  std::vector<SlotCount> slots;
  std::string policy;  // empty: all
  uint64_t seed = 1;
  bool json = false;
  std::string html;  // a file to write, "-" for stdout; empty: no page
};

/// What a plan supposes instead of what is here.
struct WhatIf {
  bool config_only = false;               // sizes follow from config.json alone
  std::vector<uint64_t> gpu_memory = {};  // of each GPU that is supposed; empty: none is
  SupposedRates rates;

  [[nodiscard]] Medium medium() const { return rates.network ? Medium::network : Medium::disk; }
};

/// dsrun plan DIR: whether a model fits, where it would lie, and how fast it should run.
struct PlanOptions {
  std::string folder;
  LoadOptions load;
  DraftOptions drafts;  // `load` has what comes of them
  uint32_t prompt_tokens = 128;
  std::optional<double> hit_rate;  // of decode, in percent; unset: assumed
  bool json = false;
  WhatIf what_if;

  /// Errors: invalid, options that contradict each other.
  [[nodiscard]] Result<void> complete();
};

/// dsrun bench DIR: tokens per second, beside what the machine could do.
struct BenchVerbOptions {
  std::string folder;
  LoadOptions load;
  DraftOptions drafts;                    // `load` has what comes of them
  std::vector<uint32_t> prompts = {512};  // tokens of each test
  std::vector<uint32_t> answers = {128};
  std::vector<uint32_t> depths = {0};
  uint32_t repetitions = 5;
  bool no_warmup = false;
  bool repeats_depth = false;
  std::string text_file;  // empty: random tokens
  bool as_json = false;

  /// Errors: invalid, options that contradict each other, or nothing to measure.
  [[nodiscard]] Result<void> complete();
};

/// What a server keeps of conversations that have lost their place.
struct CacheOptions {
  uint64_t ram_bytes = 0;
  std::string disk;                    // a folder; empty: none
  std::optional<uint64_t> disk_bytes;  // unset: what leaves the disk room
};

/// dsrun serve DIR: the model behind an HTTP interface.
struct ServeOptions {
  std::string folder;
  LoadOptions load;
  DraftOptions drafts;  // `load` has what comes of them
  std::string allow_origin;
  ChatOptions chat;
  SamplingFlags sampler;
  std::string host = "127.0.0.1";
  uint16_t port = 8080;
  std::optional<std::string> api_key = {};  // as written; see api_key.h
  std::string model_name;                   // empty: the folder's
  uint32_t parallel = 1;                    // answers at once
  uint32_t waiting = 64;                    // requests that wait for a place
  HttpLimits limits;
  CacheOptions cache;

  /// Errors: invalid, options that contradict each other.
  [[nodiscard]] Result<void> complete();
};

/// Without a word: answers a prompt, or chats where none is given.
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

/// What --version says of this build and this machine.
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
