// The sampling that a repository recommends in its generation_config.json. A chat and a server take it where no option
// says otherwise.
// Threads: call choose_sampling from the main thread; the others are pure functions. Errors: invalid, for text that is
// no JSON object.
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
  SamplingFlags sampling;            // what the file says, as if options had said it
  std::vector<std::string> ignored;  // a line for each value that cannot be used
};

/// temperature, top_k, top_p, min_p and repetition_penalty, within the bounds of the options; greedy
/// where `do_sample` is false, or where neither it nor a temperature is there. What is no such number is ignored, with
/// a line.
[[nodiscard]] Result<GenerationDefaults> parse_generation_defaults(std::string_view text);

/// Sampling as options say, and what they leave open as generation_config.json of the repository says; notes tell of
/// it. Errors: those of reading the file, which may be absent.
[[nodiscard]] Result<SamplerOptions> choose_sampling(format::Repository& files, const SamplingFlags& flags,
                                                     const std::stop_token& stop);

/// "temperature 0.6, top-p 0.95", or "greedy".
[[nodiscard]] std::string describe(const SamplerOptions& options);

}  // namespace dspack::runtime
