// One answer on its way from the scheduler to its client: tokens become text, end at stop strings, are divided into
// reasoning, content and calls, and go to the writer.
// Threads: the scheduler's, and `ping` from another. Lifetime: borrows the tokenizer. Errors: those of the generation
// are told to the client.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>

#include "runtime/generate/scheduler.h"
#include "runtime/serve/answer_writer.h"
#include "runtime/text/stop_strings.h"
#include "runtime/text/tokenizer.h"

namespace dspack::runtime {

class Answering final : public GenerationListener {
 public:
  enum class Form { text, conversation, conversation_in_thought };  // the last: the prompt ends within <think>
  using Log = std::function<void(const Error& error)>;

  Answering(const Tokenizer& tokenizer, const AnswerRequest& request, uint32_t prompt_tokens, Form form,
            std::unique_ptr<AnswerWriter> writer, Log log);

  void started(uint32_t kept) override;
  void prompt_read(uint32_t tokens) override;
  [[nodiscard]] bool wants_logits() const override { return top_logprobs_.has_value(); }
  void drafted(uint32_t tokens, uint32_t accepted) override;
  [[nodiscard]] bool token(uint32_t id, std::span<const float> logits) override;
  void ended(const Result<StopReason>& reason) override;

  /// Tells a client that waits for the first token that it is not forgotten.
  /// It gets no place. Parts of it may have been told already: a prompt that comes first.
  void refuse(const Error& error);
  /// `layer` of `layers` is where the pass under way is; 0: not known.
  void ping(uint32_t layer, uint32_t layers);

 private:
  using Clock = std::chrono::steady_clock;
  void deliver(std::string_view text, bool is_end);
  [[nodiscard]] TokenLikelihood likelihood(uint32_t id, std::span<const float> logits) const;

  std::mutex mutex_;
  const Tokenizer& tokenizer_;
  Form form_;
  Detokenizer detokenizer_;
  StopStrings stop_;
  ReplyParser parser_;
  uint32_t min_tokens_;  // of the answer; before, no text ends it
  std::optional<uint32_t> top_logprobs_;
  std::unique_ptr<AnswerWriter> writer_;
  Log log_;
  std::vector<TokenLikelihood> untold_;  // tokens whose text is held back
  AnswerCounts counts_;
  uint32_t read_ = 0;
  std::optional<Clock::time_point> begun_;  // it got its place
  std::optional<Clock::time_point> first_;  // token
  std::optional<std::string> stop_text_;    // that has ended it
  bool has_ended_ = false;
};

}  // namespace dspack::runtime
