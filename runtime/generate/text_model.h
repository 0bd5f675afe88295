// The text side of a repository: tokenizer, special tokens and chat template.
// Threads: thread-safe except use_template. Lifetime: owns its parts. Errors: not_found (neither tokenizer.json nor
// tiktoken.model), invalid or unsupported (a file that cannot be read; named).
#pragma once

#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "format/source/repository.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/guarded_text.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/tokenizer_config.h"

namespace dspack::runtime {

/// A conversation as a chat template writes it.
struct ChatText {
  std::string text;
  SpecialTokens special = SpecialTokens::parse;  // how to encode it; if guarded, so is the text (guarded_text.h)

  /// The text for people, without guards.
  [[nodiscard]] std::string plain() const { return special == SpecialTokens::guarded ? unguarded(text) : text; }
};

class TextModel {
 public:
  [[nodiscard]] static Result<TextModel> load(format::Repository& repository, const std::stop_token& stop);

  [[nodiscard]] const Tokenizer& tokenizer() const { return tokenizer_; }

  /// The chat template, or why there is none: the repository's, else the built-in one for its kind of model. A
  /// repository may have another template for conversations with tools.
  [[nodiscard]] const Result<ChatTemplate>& chat_template(bool with_tools = false) const {
    return with_tools && tool_chat_ ? *tool_chat_ : chat_;
  }
  /// The token that ends an answer's reasoning, if only a token does; absent: text ends it.
  [[nodiscard]] std::optional<uint32_t> end_of_reasoning(bool with_tools = false) const;
  /// Replaces the repository's template.
  void use_template(const ChatTemplate& chat) {
    chat_ = chat;
    tool_chat_.reset();
  }

  /// The conversation as the chat template writes it, by default up to the beginning of the assistant's answer. BOS and
  /// EOS of `options` are replaced by those of tokenizer_config.json.
  [[nodiscard]] Result<ChatText> render_chat(std::span<const ChatMessage> messages, RenderOptions options) const;
  /// Encodes text without a template, after the BOS token if tokenizer_config.json asks for one and the text does not
  /// begin with it.
  [[nodiscard]] Result<std::vector<uint32_t>> encode_raw(std::string_view text,
                                                         const EncodingLimits& limits = {}) const;

 private:
  TextModel(Tokenizer tokenizer, TokenizerConfig config, Result<ChatTemplate> chat,
            std::optional<Result<ChatTemplate>> tool_chat)
      : tokenizer_(std::move(tokenizer)),
        config_(std::move(config)),
        chat_(std::move(chat)),
        tool_chat_(std::move(tool_chat)) {}

  Tokenizer tokenizer_;
  TokenizerConfig config_;
  Result<ChatTemplate> chat_;  // an error is only reported when a chat needs it
  std::optional<Result<ChatTemplate>> tool_chat_;
};

/// Whether an answer to this text (written by a template or a user) begins within reasoning.
[[nodiscard]] bool begins_reasoning(std::string_view prompt);
/// The same for a text that ends within an answer, which begins at `answer`: its last reasoning mark decides.
[[nodiscard]] bool continues_reasoning(std::string_view prompt, size_t answer);

/// Size of the file that TextModel::load reads the tokenizer from; 0: there is none.
[[nodiscard]] Result<uint64_t> tokenizer_bytes(format::Repository& repository, const std::stop_token& stop);

}  // namespace dspack::runtime
