// dsrun DIR: one answer, or a chat.
// Threads: plain values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/cli/generation_options.h"
#include "runtime/cli/prompt.h"
#include "runtime/generate/loaded_model.h"
#include "runtime/generate/sampler.h"

namespace dspack::runtime {

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
  DraftOptions drafts;            // `load` has what comes of them
  std::vector<std::string> stop;  // texts that end an answer; none is empty
  std::string stats_file;         // empty: none

  /// Errors: invalid, options that contradict each other.
  [[nodiscard]] Result<void> complete();
};

}  // namespace dspack::runtime
