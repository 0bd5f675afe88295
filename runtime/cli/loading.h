// Loads a model or its text side for a verb, with notes on a terminal.
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

/// Loads the folder's model. `watch` may be empty.
[[nodiscard]] Result<std::unique_ptr<LoadedModel>> load_model(const std::string& folder, const LoadOptions& options,
                                                              const std::stop_token& stop,
                                                              const ProgressWatch& watch = {});

/// Loads the folder's text side, with the template that `options` choose. Errors: not_found (neither a template's name
/// nor a file); invalid (not Jinja; --thinking or --template-args that the template does not read).
[[nodiscard]] Result<TextModel> load_text(format::Repository& repository, const ChatOptions& options,
                                          const std::stop_token& stop);
/// The same for a loaded model. Errors: also invalid (a tokenizer with ids beyond the model's vocabulary); without a
/// tokenizer, the error suggests running by token ids.
[[nodiscard]] Result<TextModel> load_text(LoadedModel& loaded, const ChatOptions& options, const std::stop_token& stop);

/// Prints a line to stderr if that is a terminal.
void note(std::string_view text);

}  // namespace dspack::runtime
