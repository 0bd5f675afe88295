// Passes one answer from the scheduler to its client: decodes tokens to text, ends at stop strings, separates
// reasoning, content and calls, and feeds the writer.
// Threads: the scheduler's; `ping` from another. Lifetime: borrows the tokenizer. Errors: those of the generation are
// sent to the client.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/budget/request_memory.h"
#include "runtime/generate/scheduler.h"
#include "runtime/serve/answer_form.h"
#include "runtime/serve/answer_writer.h"
#include "runtime/text/reply_parser.h"
#include "runtime/text/stop_strings.h"
#include "runtime/text/tokenizer.h"

namespace dspack::runtime {

/// Checks a whole answer against its promised form: JSON, JSON of the requested schema, or calls whose arguments follow
/// their schemas. A grammar enforces most of a schema during generation; the rest is checked here, and violations are
/// reported. A check that is not possible counts as a fault.
class AnswerCheck {
 public:
  explicit AnswerCheck(AnswerForm form) : form_(std::move(form)) {}

  /// Takes the next part of the answer.
  void take(const ReplyPart& part);
  /// The fault of the whole answer, as a message for its client; nullopt: none.
  [[nodiscard]] std::optional<std::string> fault() const;

 private:
  struct Call {
    std::string name, arguments;
  };
  AnswerForm form_;
  std::string content_;  // only collected for answers in JSON
  std::vector<Call> calls_;
};

class Answering final : public GenerationListener {
 public:
  enum class Form { text, conversation, conversation_in_thought };  // the last: the prompt ends within <think>
  using Log = std::function<void(const Error& error)>;

  /// Answer syntax of the chat template.
  struct Marks {
    std::optional<ToolFamily> family = {};   // syntax of its calls; unset: unknown
    std::optional<uint32_t> end_think = {};  // token that is exactly </think>; unset: matched as text
  };
  Answering(const Tokenizer& tokenizer, const AnswerRequest& request, uint32_t prompt_tokens, Form form, Marks marks,
            std::unique_ptr<AnswerWriter> writer, Log log);

  /// Puts the prompt's text before the answer. Call before the generation is submitted, and not for a prompt that is
  /// scored, whose text comes with its likelihoods.
  void echo(std::span<const uint32_t> prompt);

  /// Keeps its share of the request memory until this is destroyed.
  void keep(std::shared_ptr<const RequestMemory::Share> memory) { memory_ = std::move(memory); }

  void started(uint32_t kept) override;
  void prompt_read(uint32_t tokens) override;
  void prompt_scored(std::span<const uint32_t> tokens, std::span<const float> logits) override;
  [[nodiscard]] bool wants_logits() const override { return top_logprobs_.has_value(); }
  void drafted(uint32_t tokens, uint32_t accepted) override;
  [[nodiscard]] bool token(uint32_t id, std::span<const float> logits) override;
  /// In a text completion, the end token is the last one in the logprobs: clients that asked for one token cut it off.
  void end_token(uint32_t id, std::span<const float> logits) override;
  void ended(const Result<StopReason>& reason) override;

  /// Fails the answer before generation: it gets no place.
  void refuse(const Error& error);
  using Clock = std::chrono::steady_clock;
  /// Sends progress if the client has received nothing for kMaxSilence at `now`: the prompt is being read, or text is
  /// held back. `layer` of `layers`: progress of the current pass; 0: unknown.
  void ping(Clock::time_point now, uint32_t layer, uint32_t layers);
  static constexpr std::chrono::seconds kMaxSilence{4};  // plus at most a second until the next ping

 private:
  void deliver(std::string_view text, bool is_end);
  /// Writes a part with the likelihoods of the tokens since the previous part.
  void tell(const ReplyPart& part);
  void tell_echo();
  /// The answer's violation of its form, if it ended by itself or at a stop string.
  [[nodiscard]] std::optional<std::string> fault(StopReason reason) const;
  /// The text that the token completes; held-back bytes of earlier tokens come first.
  [[nodiscard]] std::string text_after(uint32_t id);
  /// Call before the token's text is taken. Empty logits: the likelihood is unknown.
  void keep_likelihood(uint32_t id, std::span<const float> logits);

  std::mutex mutex_;
  std::shared_ptr<const RequestMemory::Share> memory_;
  const Tokenizer& tokenizer_;
  Form form_;
  std::optional<uint32_t> end_think_;
  Detokenizer detokenizer_;
  StopStrings stop_;
  ReplyParser parser_;
  AnswerCheck check_;
  uint32_t min_tokens_;  // no text ends the answer before this many tokens
  std::optional<uint32_t> top_logprobs_;
  std::unique_ptr<AnswerWriter> writer_;
  Log log_;
  std::vector<TokenLikelihood> untold_;  // likelihoods of tokens whose text is held back
  std::string echo_;                     // prompt text that has not been sent yet
  size_t bytes_ = 0;                     // length of the answer so far
  size_t characters_ = 0;                // length of the answer so far, and of the prompt if it is echoed
  AnswerCounts counts_;
  uint32_t read_ = 0;
  Clock::time_point told_ = Clock::now();   // time of the last output to the client
  std::optional<Clock::time_point> begun_;  // when it got its place
  std::optional<Clock::time_point> first_;  // time of the first token
  std::optional<std::string> stop_text_;    // the stop string that ended it
  bool has_ended_ = false;
};

}  // namespace dspack::runtime
