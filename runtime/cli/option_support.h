// What the command lines of all verbs have in common.
// Threads: call from the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cli/options.h"

namespace dspack::runtime {

[[nodiscard]] std::unique_ptr<CLI::App> make_app(const std::string& name, const std::string& about);
void add_folder(CLI::App& app, std::string& folder);
/// --ctx, --threads, --cpu, --device, --vram, --precision, --cuda-library, --ram, --experts, --kv-dtype, --cache,
/// --disk, --absent-from, --layers, --ratio-repeat,
/// --io and --verify.
void add_load_options(CLI::App& app, LoadOptions& load);
/// --temp, --top-k ... --seed.
void add_sampling_options(CLI::App& app, SamplerOptions& sampler);
/// --chat-template and --thinking; the latter's text is read after parsing.
void add_chat_options(CLI::App& app, ChatOptions& chat, std::optional<std::string>& thinking);
/// --tokens 1,2,3 or @FILE or -; the file is read later.
CLI::Option* add_tokens(CLI::App& app, TokenArgument& tokens,
                        const std::string& about = "Token ids, with commas between");
/// Fills in what the options point at. An Exit: help, version, or a mistake.
[[nodiscard]] std::optional<Exit> parse(CLI::App& app, std::vector<std::string> arguments);

/// Without the range in the help text, which says what matters.
template <class T>
CLI::Validator between(T low, T high) {
  return CLI::Range(low, high).description("");
}

}  // namespace dspack::runtime
