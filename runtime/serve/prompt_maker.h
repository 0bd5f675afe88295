// From what a client asks to the tokens that the model reads: rendering by the chat template, encoding, and the bounds
// of both. A text that the context cannot hold, however well it is encoded, is neither rendered nor encoded; what is
// under way ends when the client has left. Threads: thread-safe. Lifetime: borrows the text model. Errors: invalid (a
// request that can never be answered), conflict (memory that others have now), cancelled, those of templates and
// tokenizers.
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
  /// The text is too long: it has so many tokens, or more, and `tokens` has not all of them.
  std::optional<uint64_t> at_least = {};
};

class PromptMaker {
 public:
  struct Options {
    uint32_t context = 0;                                    // positions of a conversation
    OrderedJson template_arguments = OrderedJson::object();  // where a request says nothing
    std::function<std::tm()> clock;                          // for templates that print the date
  };
  /// Who asks: what it may take beside what was counted for reading the request, and whether it is still there.
  struct Asker {
    RequestMemory::Share& memory;
    std::stop_token gone;
  };
  PromptMaker(const TextModel& text, Options options) : text_(text), options_(std::move(options)) {}

  /// One, of a conversation, or one for each text.
  [[nodiscard]] Result<std::vector<Prompt>> prompts_of(const AnswerRequest& request, const Asker& asker) const;
  /// Of a conversation.
  [[nodiscard]] Result<Prompt> prompt_of(const AnswerRequest& request, const Asker& asker) const;
  /// The text of a conversation, of any length.
  [[nodiscard]] Result<std::string> render(const AnswerRequest& request, const Asker& asker) const;
  /// A text as it is, of any length, after the BOS token if `begins`.
  [[nodiscard]] Result<std::vector<uint32_t>> encode(std::string_view text, bool begins, const Asker& asker) const;

 private:
  [[nodiscard]] Result<RenderOptions> render_options(const AnswerRequest& request, const Asker& asker) const;
  /// Where the answer begins in a prompt that goes on with a conversation's last message.
  [[nodiscard]] size_t answer_begin(std::string_view text, std::span<const ChatMessage> messages,
                                    RenderOptions options) const;
  /// Tokens that a text of so many bytes has at least, where these are more than the context holds.
  [[nodiscard]] std::optional<uint64_t> too_many(uint64_t text_bytes) const;
  [[nodiscard]] Result<void> encode_into(Prompt& prompt, std::string_view text, SpecialTokens special, bool begins,
                                         const Asker& asker) const;

  const TextModel& text_;
  Options options_;
};

}  // namespace dspack::runtime
