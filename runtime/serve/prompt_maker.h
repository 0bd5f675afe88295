// Turns a client's request into the tokens that the model reads: rendering by the chat template, encoding, and the
// limits of both. A text that cannot fit the context under any encoding is neither rendered nor encoded; work stops
// when the client has left.
// Threads: thread-safe. Lifetime: borrows the text model. Errors: invalid (a request that can never be answered),
// conflict (memory that others hold now), cancelled, those of templates and tokenizers.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/budget/request_memory.h"
#include "runtime/generate/text_model.h"
#include "runtime/serve/answer_request.h"
#include "runtime/serve/answering.h"

namespace dspack::runtime {

struct Prompt {
  std::vector<uint32_t> tokens;
  Answering::Form form = Answering::Form::text;
  Reasoning reasoning = Reasoning::none;
  /// Set if the text is too long: it has at least this many tokens, and `tokens` is incomplete.
  std::optional<uint64_t> at_least = {};
};

class PromptMaker {
 public:
  struct Options {
    uint32_t context = 0;                                    // positions per conversation
    OrderedJson template_arguments = OrderedJson::object();  // defaults for requests
    std::function<std::tm()> clock;                          // for templates that print the date
  };
  /// The client: its memory beyond what was counted for reading the request, and whether it has left.
  struct Asker {
    RequestMemory::Share& memory;
    std::stop_token gone;
  };
  PromptMaker(const TextModel& text, Options options) : text_(text), options_(std::move(options)) {}

  /// One prompt for a conversation, or one for each text.
  [[nodiscard]] Result<std::vector<Prompt>> prompts_of(const AnswerRequest& request, const Asker& asker) const;
  /// The prompt of a conversation.
  [[nodiscard]] Result<Prompt> prompt_of(const AnswerRequest& request, const Asker& asker) const;
  /// The text of a conversation, of any length.
  [[nodiscard]] Result<std::string> render(const AnswerRequest& request, const Asker& asker) const;
  /// Encodes a text of any length, after the BOS token if `begins`.
  [[nodiscard]] Result<std::vector<uint32_t>> encode(std::string_view text, bool begins, const Asker& asker) const;

 private:
  [[nodiscard]] Result<RenderOptions> render_options(const AnswerRequest& request, const Asker& asker) const;
  /// Position of the answer in a prompt that continues the conversation's last message.
  [[nodiscard]] size_t answer_begin(std::string_view text, std::span<const ChatMessage> messages,
                                    RenderOptions options) const;
  /// A lower bound for the tokens of a text of this many bytes, if it exceeds the context.
  [[nodiscard]] std::optional<uint64_t> too_many(uint64_t text_bytes) const;
  [[nodiscard]] Result<void> encode_into(Prompt& prompt, std::string_view text, SpecialTokens special, bool begins,
                                         const Asker& asker) const;

  const TextModel& text_;
  Options options_;
};

}  // namespace dspack::runtime
