// dsrun's command line: verbs, flags, help.
// Threads: plain values. Errors: a command line that cannot be understood becomes an Exit with status 2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/cli/plan_options.h"
#include "runtime/cli/replay_options.h"
#include "runtime/cli/validation_options.h"
#include "runtime/generate/loaded_model.h"
#include "runtime/generate/sampler.h"

namespace dspack::runtime {

/// How a conversation becomes a prompt.
struct ChatOptions {
  std::string chat_template;     // a known name, or a file with the Jinja source of one; empty: the repository's
  std::optional<bool> thinking;  // for templates with such a switch
};

/// dsrun DIR [-p TEXT | --chat FILE | --tokens IDS]; none of them: a chat
struct RunOptions {
  std::string folder;
  LoadOptions load;
  std::optional<std::string> prompt;        // "-": standard input
  std::optional<std::string> conversation;  // a file of JSON, "-": standard input
  TokenArgument tokens;                     // the prompt as token ids; then the answer is printed as ids, too
  bool raw = false;                         // continue the prompt as it is, without the chat template
  ChatOptions chat;
  std::optional<uint32_t> max_tokens;
  SamplerOptions sampler;
  std::vector<std::string> stop;  // texts that end an answer; none is empty
  std::string stats_file;         // empty: none
};

/// dsrun logits DIR
struct LogitsOptions {
  std::string folder;
  LoadOptions load;
  TokenArgument tokens;
  std::string out;
  uint32_t chunk = 0;  // tokens at once; 0: as many as fit
  std::string stats_file;
};

/// dsrun tokenize DIR
struct TokenizeOptions {
  std::string folder;
  RemoteAccess remote;
  // Exactly one of these four.
  std::optional<std::string> prompt;        // "-": standard input
  std::optional<std::string> conversation;  // a file of JSON; "-": standard input
  std::optional<std::string> texts_file;
  std::optional<std::string> ids_file;
  ChatOptions chat;
  bool add_generation_prompt = true;
  enum class Output { ids, json, text } output = Output::ids;
};

/// Nothing to run: help, version, or a mistake.
struct Exit {
  int status = 0;
  std::string text;  // for stdout if the status is 0, else for stderr
};

using CommandLine = std::variant<RunOptions, LogitsOptions, TokenizeOptions, EvalOptions, RecordOptions, CompareOptions,
                                 ReplayOptions, PlanOptions, Exit>;

/// `arguments` without the program's name.
[[nodiscard]] CommandLine parse_command_line(std::vector<std::string> arguments);

// Of one verb each; `arguments` without the verb. See validation_options.h.
[[nodiscard]] CommandLine parse_eval(std::vector<std::string> arguments);
[[nodiscard]] CommandLine parse_record(std::vector<std::string> arguments);
[[nodiscard]] CommandLine parse_compare(std::vector<std::string> arguments);
// See replay_options.h.
[[nodiscard]] CommandLine parse_replay(std::vector<std::string> arguments);
[[nodiscard]] CommandLine parse_plan(std::vector<std::string> arguments);  // plan_options.h

}  // namespace dspack::runtime
