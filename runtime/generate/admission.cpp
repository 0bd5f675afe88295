#include "runtime/generate/admission.h"

#include <algorithm>

namespace dspack::runtime {
namespace {

constexpr double kKept = 0.98;  // factor by which older passes decay in each pass

}  // namespace

void Admission::record(uint32_t answers, uint32_t tokens, uint64_t misses) {
  ++passes_;
  Level& level = levels_.at(answers);
  if (passes_ - level.last > kTrust) level = {};
  level.misses = level.misses * kKept + static_cast<double>(misses);
  level.tokens = level.tokens * kKept + tokens;
  level.passes = std::min(level.passes + 1, kEnough);
  level.last = passes_;
}

bool Admission::is_known(uint32_t answers) const {
  const Level& level = levels_.at(answers);
  return level.passes >= kEnough && passes_ - level.last <= kTrust;
}

double Admission::misses_a_token(uint32_t answers) const {
  return is_known(answers) ? levels_[answers].misses / levels_[answers].tokens : 0;
}

bool Admission::admits(uint32_t answers) const {
  if (answers == 0) return true;
  if (!is_known(answers) || !is_known(answers + 1)) return true;
  return misses_a_token(answers + 1) <= misses_a_token(answers) * kSlack;
}

}  // namespace dspack::runtime
