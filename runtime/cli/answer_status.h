// The status line of an answer: how far its prompt is, then its tokens a second, and what a token waits for that does
// not come at once. On a terminal below the answer, and what prompts take also where there is none.
// Threads: call from the main thread; a thread of the line's own looks on. Errors: those of the session.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "format/cli/progress_meter.h"
#include "runtime/generate/loaded_model.h"

namespace dspack::runtime {

/// session.generate with a status line, which is gone when it returns.
[[nodiscard]] Result<Answer> generate_with_status(LoadedModel& loaded, Session& session,
                                                  std::span<const uint32_t> prompt, GenerateOptions options,
                                                  Sampler& sampler, const TokenCallback& on_token,
                                                  const std::stop_token& stop);

/// What a pass waits for.
enum class Awaited { computing, layer, disk, network };

/// What there is to say at one moment. "So far": since the prompt began, and in an answer since its last token.
struct AnswerMoment {
  std::optional<uint64_t> tokens{};  // of the answer; nullopt: the prompt is under way
  double tokens_per_second = 0;      // of the last seconds
  double token_seconds = 0;          // since the last token
  uint64_t layer = 0;                // of the pass, from 1; 0: not known
  uint64_t layers = 0;               // of a pass
  uint64_t pass = 1;                 // of a prompt, as the next
  uint64_t passes = 1;
  uint64_t experts = 0;                  // that were read so far
  uint64_t bytes = 0;                    // likewise
  double bytes_per_second = 0;           // of the last seconds
  std::optional<double> seconds_left{};  // of a prompt
  Awaited awaited = Awaited::computing;
  format::ProgressMeter::Wait wait{};  // of transfers under way
};

/// "prompt: layer 12 of 61, 2310 experts, 101.7 GB, 1.2 GB/s, 5 min 02 s left"; "12 tokens, 0.2 tokens/s, experts from
/// the network: 44.1 MB, no byte for 12 s, retry 2 of 11".
[[nodiscard]] std::string answer_status_line(const AnswerMoment& moment);

}  // namespace dspack::runtime
