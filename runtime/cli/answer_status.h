// The status line of an answer: progress of the prompt, then tokens per second, and the cause of a slow token. On a
// terminal it appears below the answer; progress of prompts is also shown without a terminal.
// Threads: call from the main thread; the line's own thread reads concurrently. Errors: those of the session.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "format/cli/progress_meter.h"
#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

/// session.generate with a status line, which is cleared before it returns.
[[nodiscard]] Result<Answer> generate_with_status(LoadedModel& loaded, Session& session,
                                                  std::span<const uint32_t> prompt, GenerateOptions options,
                                                  Sampler& sampler, const TokenCallback& on_token,
                                                  const std::stop_token& stop);

/// The cause for which a pass waits.
enum class Awaited { computing, layer, disk, network };

/// The state at one moment. Counts are since the prompt began, or, in an answer, since its last token.
struct AnswerMoment {
  std::optional<uint64_t> tokens{};  // tokens of the answer; nullopt: the prompt is being read
  double tokens_per_second = 0;      // rate over the last seconds
  double token_seconds = 0;          // since the last token
  uint64_t layer = 0;                // current layer of the pass, from 1; 0: unknown
  uint64_t layers = 0;               // layers per pass
  uint64_t pass = 1;                 // current pass of the prompt, of `passes`
  uint64_t passes = 1;
  uint64_t experts = 0;                  // experts read so far
  uint64_t bytes = 0;                    // bytes read so far
  double bytes_per_second = 0;           // rate over the last seconds
  std::optional<double> seconds_left{};  // for a prompt
  Awaited awaited = Awaited::computing;
  format::ProgressMeter::Wait wait{};  // current wait of transfers
};

/// "prompt: layer 12 of 61, 2310 experts, 101.7 GB, 1.2 GB/s, 5 min 02 s left"; "12 tokens, 0.2 tokens/s, experts from
/// the network: 44.1 MB, no byte for 12 s, retry 2 of 11".
[[nodiscard]] std::string answer_status_line(const AnswerMoment& moment);

}  // namespace dspack::runtime
