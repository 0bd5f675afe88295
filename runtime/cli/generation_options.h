// The options that control token choice: sampling, and drafting with the MTP module.
// Threads: main. Lifetime: the targets of options must live until the command line has been parsed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "format/cli/option_table.h"
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

}  // namespace dspack::runtime
