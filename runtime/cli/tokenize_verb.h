// dsrun tokenize DIR: the token ids of a text, a conversation or many texts, and back.
// Threads: plain values.
#pragma once

#include <optional>
#include <string>

#include "runtime/cli/prompt.h"
#include "runtime/storage/remote_place.h"

namespace dspack::runtime {

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

}  // namespace dspack::runtime
