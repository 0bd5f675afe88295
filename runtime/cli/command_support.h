// What several verbs do alike: open the folder, read the prompt, write answers and statistics.
// Threads: call from the main thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "runtime/cli/options.h"
#include "runtime/generate/session.h"
#include "runtime/generate/text_model.h"
#include "runtime/text/chat_json.h"
#include "runtime/text/detokenizer.h"
#include "runtime/text/stop_strings.h"

namespace dspack::runtime {

inline constexpr int kInterruptedStatus = 130;

/// The folder's model, with a note on a terminal while it loads.
[[nodiscard]] Result<std::unique_ptr<LoadedModel>> load_model(const std::string& folder, const LoadOptions& options,
                                                              const std::stop_token& stop);

/// The folder's text side, with the template that `options` choose. Errors: not_found (neither a template's name nor a
/// file); unsupported (a file with an unknown template); invalid (--thinking for a template that has no such switch).
[[nodiscard]] Result<TextModel> load_text(format::Repository& repository, const ChatOptions& options,
                                          const std::stop_token& stop);
/// The same for a model. Errors: also invalid (a tokenizer with ids that the model does not have); where there is no
/// tokenizer, the remedy of running by token ids.
[[nodiscard]] Result<TextModel> load_text(LoadedModel& loaded, const ChatOptions& options, const std::stop_token& stop);

/// Options of an answer: what ends it, and what is said or refused before its prompt. Borrows the model.
[[nodiscard]] GenerateOptions generate_options(LoadedModel& loaded, const RunOptions& options);

/// Ends a run: brings recorded routes into their file, writes the statistics to `file` unless that is empty, and a line
/// to stderr where a person sees it.
[[nodiscard]] Result<void> report_stats(LoadedModel& loaded, const Session& session, const std::string& file);

/// Prints an answer as it comes: whole characters only, nothing that could steer the terminal where stdout is one, and
/// nothing from a stop string on.
class AnswerPrinter {
 public:
  AnswerPrinter(const Tokenizer& tokenizer, StopStrings stop);
  /// False if the answer has reached a stop string.
  bool push(uint32_t token);
  /// Ends the answer and returns all of its text.
  std::string finish();

 private:
  void print(std::string_view text);

  Detokenizer detokenizer_;
  StopStrings stop_;
  std::string text_;
};

/// A line to stderr if a person looks at it.
void note(std::string_view text);

/// Says on stderr why an answer is shorter than it might be, where there is something to say.
void report_end(StopReason reason);

}  // namespace dspack::runtime
