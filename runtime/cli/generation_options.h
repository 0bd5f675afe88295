// The options that control token choice: sampling, and drafting with the MTP module; and the sampling that a repository
// recommends in its generation_config.json, which a chat and a server use unless options override it.
// Threads: main. Lifetime: the targets of options must live until the command line has been parsed. Errors: invalid,
// for text that is not a JSON object.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"
#include "format/cli/option_table.h"
#include "format/source/repository.h"
#include "runtime/generate/sampler.h"
#include "runtime/generate/speculator.h"

namespace dspack::runtime {

/// Sampling as given by options; unset values are left to others.
struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<uint32_t> top_k;
  std::map<uint32_t, double> logit_bias = {};
  uint64_t seed = 0;

  [[nodiscard]] SamplerOptions over(SamplerOptions base = {}) const;
};

/// --temp, --top-k, --top-p, --min-p, the penalties, --logit-bias and --seed.
void add_sampling_options(format::OptionTable& table, SamplingFlags& sampler);

struct DraftOptions {
  bool is_on = false;
  SpeculationOptions speculation;

  /// nullopt: no drafting.
  [[nodiscard]] std::optional<SpeculationOptions> chosen() const {
    return is_on ? std::optional(speculation) : std::nullopt;
  }
};

/// --mtp and the --dev key mtp-hidden.
void add_draft_options(format::OptionTable& table, DraftOptions& drafts);

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
