// The options that choose tokens: sampling, and drafting with the MTP module.
// Threads: main. Lifetime: what options are read into must live until the command line was parsed.
#pragma once

#include <optional>

#include "format/cli/option_table.h"
#include "runtime/generate/sampler.h"
#include "runtime/generate/speculator.h"

namespace dspack::runtime {

/// --temp, --top-k, --top-p, --min-p, --repetition-penalty, --logit-bias and --seed.
void add_sampling_options(format::OptionTable& table, SamplerOptions& sampler);

struct DraftOptions {
  bool is_on = false;
  SpeculationOptions speculation;

  /// Nullopt: no drafting.
  [[nodiscard]] std::optional<SpeculationOptions> chosen() const {
    return is_on ? std::optional(speculation) : std::nullopt;
  }
};

/// --mtp and the --dev key mtp-hidden.
void add_draft_options(format::OptionTable& table, DraftOptions& drafts);

}  // namespace dspack::runtime
