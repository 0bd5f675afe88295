// A model or its text side, loaded for a verb, with notes on a terminal meanwhile.
// Threads: call from the main thread.
#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

#include "runtime/cli/places.h"
#include "runtime/cli/prompt.h"
#include "runtime/generate/loaded_model.h"
#include "runtime/generate/text_model.h"

namespace dspack::runtime {

/// The folder's model, with a note on a terminal while it loads. `watch` may be empty.
[[nodiscard]] Result<std::unique_ptr<LoadedModel>> load_model(const std::string& folder, const LoadOptions& options,
                                                              const std::stop_token& stop,
                                                              const ProgressWatch& watch = {});

/// The folder's text side, with the template that `options` choose. Errors: not_found (neither a template's name nor a
/// file); invalid (no Jinja; --thinking or --template-args for a template that does not read it).
[[nodiscard]] Result<TextModel> load_text(format::Repository& repository, const ChatOptions& options,
                                          const std::stop_token& stop);
/// The same for a model. Errors: also invalid (a tokenizer with ids that the model does not have); where there is no
/// tokenizer, the remedy of running by token ids.
[[nodiscard]] Result<TextModel> load_text(LoadedModel& loaded, const ChatOptions& options, const std::stop_token& stop);

/// A line to stderr if a person looks at it.
void note(std::string_view text);

}  // namespace dspack::runtime
