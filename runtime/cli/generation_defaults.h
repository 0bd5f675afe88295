// The sampling that a repository recommends in its generation_config.json. A chat and a server use it unless options
// override it.
// Threads: call choose_sampling from the main thread; the others are pure functions. Errors: invalid, for text that is
// not a JSON object.
#pragma once

#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "format/source/repository.h"
#include "runtime/cli/generation_options.h"

namespace dspack::runtime {

struct GenerationDefaults {
  SamplingFlags sampling;            // the file's values, as if given as options
  std::vector<std::string> ignored;  // a line for each unusable value
};

/// Reads temperature, top_k, top_p, min_p and repetition_penalty, within the bounds of the options. Greedy if
/// `do_sample` is false, or if both it and the temperature are missing. Values out of range are ignored, with a line
/// each.
[[nodiscard]] Result<GenerationDefaults> parse_generation_defaults(std::string_view text);

/// Sampling from the options, completed by the repository's generation_config.json; prints notes on it. Errors: those
/// of reading the file, which may be absent.
[[nodiscard]] Result<SamplerOptions> choose_sampling(format::Repository& files, const SamplingFlags& flags,
                                                     const std::stop_token& stop);

/// "temperature 0.6, top-p 0.95", or "greedy".
[[nodiscard]] std::string describe(const SamplerOptions& options);

}  // namespace dspack::runtime
