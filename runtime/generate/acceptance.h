// Speculative sampling: whether a drafted token is accepted, and what replaces it. The resulting token has the
// distribution of the target, whatever the proposal was (Leviathan et al. 2023, Chen et al. 2023): a draft d is
// accepted with probability min(1, p(d) / q(d)); otherwise the token is drawn from max(0, p - q), renormalised. Where
// both are certain (temperature 0) no number is drawn. Threads: thread-safe (pure functions of their arguments).
// Errors: none.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "runtime/generate/sampler.h"

namespace dspack::runtime {

/// Draws from [0, 1).
using Uniform = std::function<double()>;

/// A token by its probability. Precondition: `candidates` is not empty and its probabilities are positive; they need
/// not sum to 1 (`sum` says to what they do).
[[nodiscard]] uint32_t draw(std::span<const Candidate> candidates, double sum, const Uniform& uniform);

/// `draft`, if it stands, or the token in its place, which is another one. `draft` was drawn from `proposal`; each
/// token occurs once in either list.
[[nodiscard]] uint32_t keep_or_replace(std::span<const Candidate> target, std::span<const Candidate> proposal,
                                       uint32_t draft, const Uniform& uniform);

}  // namespace dspack::runtime
