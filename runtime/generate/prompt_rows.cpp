#include "runtime/generate/prompt_rows.h"

#include <algorithm>

namespace dspack::runtime {

uint32_t efficient_rows(const ModelConfig& config, bool is_beside_answers) {
  const uint32_t rows_of_expert = is_beside_answers ? 32 : 64;
  return rows_of_expert * std::max(1U, config.experts / std::max(1U, config.top_k));
}

std::vector<uint32_t> divide_rows(std::span<const uint32_t> lacking, const PromptShare& pass) {
  std::vector<uint32_t> rows(lacking.size(), 0);
  const uint32_t share = std::min(pass.share, pass.most);
  uint32_t taken = 0;
  const auto give = [&](size_t prompt, uint32_t more) {
    rows[prompt] += more;
    taken += more;
  };
  for (size_t i = 0; i < lacking.size(); ++i) {
    if (taken < share)
      give(i, std::min(lacking[i], share - taken));
    else if (lacking[i] <= share && lacking[i] <= std::min(2 * share, pass.most) - taken)
      give(i, lacking[i]);
  }
  for (size_t i = 0; pass.is_filled && i < lacking.size(); ++i)
    give(i, std::min(lacking[i] - rows[i], pass.most - taken));
  return rows;
}

}  // namespace dspack::runtime
