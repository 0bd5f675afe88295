// The paths that turn text into tokens and back, and render conversations, without an answer of the model.
// Threads: thread-safe. Lifetime: borrows text, prompts and options. Errors: those of requests and of PromptMaker.
#pragma once

#include <optional>
#include <string_view>

#include "runtime/generate/text_model.h"
#include "runtime/serve/api_options.h"
#include "runtime/serve/prompt_maker.h"

namespace dspack::runtime {

class TextFunctions {
 public:
  TextFunctions(const TextModel& text, const PromptMaker& prompts, const ApiOptions& options)
      : text_(text), prompts_(prompts), options_(options) {}

  /// Answers a POST of `body`; nullopt: `path` is none of these.
  [[nodiscard]] std::optional<Result<OrderedJson>> answer(std::string_view path, std::string_view body,
                                                          const PromptMaker::Asker& asker) const;

 private:
  [[nodiscard]] Result<OrderedJson> tokenize(std::string_view body, const PromptMaker::Asker& asker) const;
  [[nodiscard]] Result<OrderedJson> detokenize(std::string_view body, const PromptMaker::Asker& asker) const;
  [[nodiscard]] Result<OrderedJson> apply_template(std::string_view body, const PromptMaker::Asker& asker) const;
  [[nodiscard]] Result<OrderedJson> count_tokens(std::string_view body, const PromptMaker::Asker& asker) const;

  const TextModel& text_;
  const PromptMaker& prompts_;
  const ApiOptions& options_;
};

}  // namespace dspack::runtime
