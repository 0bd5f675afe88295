// One answer on its way from the scheduler to its client: tokens become text, end at stop strings, are divided into
// reasoning, content and calls, and go to the writer.
// Threads: the scheduler's, and `ping` from another. Lifetime: borrows the tokenizer. Errors: those of the generation
// are told to the client.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/budget/request_memory.h"
#include "runtime/generate/scheduler.h"
#include "runtime/serve/answer_check.h"
#include "runtime/serve/answer_writer.h"
#include "runtime/text/stop_strings.h"
#include "runtime/text/tokenizer.h"

namespace dspack::runtime {

class Answering final : public GenerationListener {
 public:
  enum class Form { text, conversation, conversation_in_thought };  // the last: the prompt ends within <think>
  using Log = std::function<void(const Error& error)>;

  /// What the chat template knows of answers.
  struct Marks {
    std::optional<ToolFamily> family = {};   // in which it writes calls; absent: not known
    std::optional<uint32_t> end_think = {};  // the token that alone is </think>; absent: its text is
  };
  Answering(const Tokenizer& tokenizer, const AnswerRequest& request, uint32_t prompt_tokens, Form form, Marks marks,
            std::unique_ptr<AnswerWriter> writer, Log log);

  /// The prompt's text comes before the answer's. Before the generation is submitted; not of a prompt that is scored,
  /// which comes with its likelihoods.
  void echo(std::span<const uint32_t> prompt);

  /// What it takes of the memory of requests, until it is gone.
  void keep(std::shared_ptr<const RequestMemory::Share> memory) { memory_ = std::move(memory); }

  void started(uint32_t kept) override;
  void prompt_read(uint32_t tokens) override;
  void prompt_scored(std::span<const uint32_t> tokens, std::span<const float> logits) override;
  [[nodiscard]] bool wants_logits() const override { return top_logprobs_.has_value(); }
  void drafted(uint32_t tokens, uint32_t accepted) override;
  [[nodiscard]] bool token(uint32_t id, std::span<const float> logits) override;
  /// Of a text it is told with the likelihoods, as the last token: clients cut it off where they asked for one token.
  void end_token(uint32_t id, std::span<const float> logits) override;
  void ended(const Result<StopReason>& reason) override;

  /// It gets no place.
  void refuse(const Error& error);
  using Clock = std::chrono::steady_clock;
  /// Tells a client that at `now` has heard nothing for kMostSilence that it is not forgotten: it waits for the first
  /// token, or text is held back. `layer` of `layers` is where the pass under way is; 0: not known.
  void ping(Clock::time_point now, uint32_t layer, uint32_t layers);
  static constexpr std::chrono::seconds kMostSilence{4};  // and then a second, at most, until it is noticed

 private:
  void deliver(std::string_view text, bool is_end);
  /// With the likelihoods of the tokens since the part before.
  void tell(const ReplyPart& part);
  void tell_echo();
  /// What is wrong with the answer, if it ended by itself or at a stop string.
  [[nodiscard]] std::optional<std::string> fault(StopReason reason) const;
  /// The text that the token completes, which follows what came before.
  [[nodiscard]] std::string text_after(uint32_t id);
  /// Before its text is taken. Without logits: nothing is known.
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
  uint32_t min_tokens_;  // of the answer; before, no text ends it
  std::optional<uint32_t> top_logprobs_;
  std::unique_ptr<AnswerWriter> writer_;
  Log log_;
  std::vector<TokenLikelihood> untold_;  // tokens whose text is held back
  std::string echo_;                     // that has not been told yet
  size_t bytes_ = 0;                     // of the answer so far
  size_t characters_ = 0;                // of prompt and answer so far, where the prompt is echoed
  AnswerCounts counts_;
  uint32_t read_ = 0;
  Clock::time_point told_ = Clock::now();   // when the client was told something last
  std::optional<Clock::time_point> begun_;  // it got its place
  std::optional<Clock::time_point> first_;  // token
  std::optional<std::string> stop_text_;    // that has ended it
  bool has_ended_ = false;
};

}  // namespace dspack::runtime
