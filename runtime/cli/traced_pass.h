// One pass of the model that is traced module by module: its tokens, and how it is run.
// Threads: call from the main thread. Lifetime: options must live until the command line has been parsed.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/cli/prompt.h"
#include "runtime/generate/loaded_model.h"
#include "runtime/weights/trace.h"

namespace dspack::runtime {

/// The tokens of a pass, as ids or as text.
struct PassTokens : TokenArgument {
  std::optional<std::string> prompt;  // "-": standard input
  bool raw = false;
};

/// --tokens, -p and --raw.
void add_pass_tokens(format::OptionTable& table, PassTokens& tokens);
/// The options of the model.
void add_pass_model_options(format::OptionTable& table, LoadOptions& load);

/// Empty: no tokens were given.
[[nodiscard]] Result<std::vector<uint32_t>> tokens_of(const PassTokens& asked, const std::string& folder,
                                                      const RemoteAccess& remote, const std::stop_token& stop);

/// Loads the model with room for exactly these tokens, unless --ctx is given. Errors: also invalid (more tokens than
/// the model takes at once).
[[nodiscard]] Result<std::unique_ptr<LoadedModel>> load_for(const std::string& folder, LoadOptions options,
                                                            std::span<const uint32_t> tokens,
                                                            const std::stop_token& stop);

/// Runs one pass over the tokens, and reports it to `trace`.
[[nodiscard]] Result<void> run_traced(LoadedModel& loaded, std::span<const uint32_t> tokens, Trace& trace,
                                      const std::stop_token& stop);

}  // namespace dspack::runtime
