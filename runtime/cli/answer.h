// An answer: its limits, how it is printed while it is generated, and the summary at its end.
// Threads: call from the main thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/generate/loaded_model.h"
#include "runtime/generate/session.h"
#include "runtime/text/stop_strings.h"
#include "runtime/text/tokenizer.h"

namespace dspack::runtime {

/// Options for an answer of at most `max_tokens` tokens: its end tokens, and the fetch guard's notes and refusals
/// before its prompt. Borrows the model.
[[nodiscard]] GenerateOptions generate_options(LoadedModel& loaded, std::optional<uint32_t> max_tokens);

/// Prints an answer as it arrives: only whole characters, no control sequences if stdout is a terminal, and nothing
/// from a stop string on.
class AnswerPrinter {
 public:
  /// `reasons`: the answer begins within reasoning. Reasoning, which ends in </think>, is dimmed on a terminal.
  /// `end_of_reasoning`: the token that is exactly this mark; unset: the mark is found as text.
  AnswerPrinter(const Tokenizer& tokenizer, StopStrings stop, bool reasons = false,
                std::optional<uint32_t> end_of_reasoning = {});
  ~AnswerPrinter();
  AnswerPrinter(const AnswerPrinter&) = delete;
  AnswerPrinter& operator=(const AnswerPrinter&) = delete;
  /// False if the answer has reached a stop string.
  bool push(uint32_t token);
  /// Ends the answer and returns all of its text.
  std::string finish();
  /// Offset in that text at which the answer begins, after the reasoning; the text's size if the reasoning has not
  /// ended.
  [[nodiscard]] size_t answer_begin() const { return answer_begin_; }

 private:
  void print(std::string_view text);
  void follow_reasoning(std::string_view text);

  Detokenizer detokenizer_;
  StopStrings stop_;
  std::string text_;
  bool reasons_;
  std::optional<uint32_t> end_of_reasoning_;
  size_t bytes_ = 0;                // length of the answer, including held-back text
  size_t end_ = std::string::npos;  // offset after the mark, if its token was seen
  size_t answer_begin_ = 0;
};

/// Prints on stderr that an answer ended early: the context is full, or it was interrupted.
void report_end(StopReason reason);

/// Ends a run: writes recorded routes to their file, the statistics to `file` unless that is empty, and a summary line
/// to stderr if that is a terminal.
[[nodiscard]] Result<void> report_stats(LoadedModel& loaded, const Session& session, const std::string& file);

}  // namespace dspack::runtime
