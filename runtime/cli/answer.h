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

/// Options of an answer of at most so many tokens: what ends it, and what is said or refused before its prompt. Borrows
/// the model.
[[nodiscard]] GenerateOptions generate_options(LoadedModel& loaded, std::optional<uint32_t> max_tokens);

/// Prints an answer as it comes: whole characters only, nothing that could steer the terminal where stdout is one, and
/// nothing from a stop string on.
class AnswerPrinter {
 public:
  /// `reasons`: the answer begins within reasoning. Reasoning, which ends in </think>, is dimmed on a terminal.
  /// `end_of_reasoning`: the token that alone is this mark; absent: its text is.
  AnswerPrinter(const Tokenizer& tokenizer, StopStrings stop, bool reasons = false,
                std::optional<uint32_t> end_of_reasoning = {});
  ~AnswerPrinter();
  AnswerPrinter(const AnswerPrinter&) = delete;
  AnswerPrinter& operator=(const AnswerPrinter&) = delete;
  /// False if the answer has reached a stop string.
  bool push(uint32_t token);
  /// Ends the answer and returns all of its text.
  std::string finish();
  /// Where in that text the answer begins, after the reasoning; its size, where the reasoning has not ended.
  [[nodiscard]] size_t answer_begin() const { return answer_begin_; }

 private:
  void print(std::string_view text);
  void follow_reasoning(std::string_view text);

  Detokenizer detokenizer_;
  StopStrings stop_;
  std::string text_;
  bool reasons_;
  std::optional<uint32_t> end_of_reasoning_;
  size_t bytes_ = 0;                // of the answer, what is held back included
  size_t end_ = std::string::npos;  // after the mark that was told by its token
  size_t answer_begin_ = 0;
};

/// Says on stderr why an answer is shorter than it might be, where there is something to say.
void report_end(StopReason reason);

/// Ends a run: brings recorded routes into their file, writes the statistics to `file` unless that is empty, and a line
/// to stderr where a person sees it.
[[nodiscard]] Result<void> report_stats(LoadedModel& loaded, const Session& session, const std::string& file);

}  // namespace dspack::runtime
