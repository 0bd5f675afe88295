// How many tokens of a prompt go through a model at once.
// Threads: a pure function on plain values. Errors: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

namespace dspack::runtime {

struct PassRows {
  uint32_t chunk = 1;  // through all layers at once: experts are fetched, and streamed layers read, once per chunk
  uint32_t wave = 1;   // through attention and MLPs at once; at most chunk. Fewer save memory, more use a GPU better
  [[nodiscard]] bool operator==(const PassRows&) const = default;
};

/// Longer waves are used only once the chunk is as long as possible: fetching an expert again costs more than products
/// of fewer rows.
inline constexpr uint32_t kUsualWave = 256;

/// The longest chunk that fits, then the longest waves that still fit with it. {1, 1} if nothing fits.
[[nodiscard]] inline PassRows longest_that_fit(PassRows longest, const std::function<bool(PassRows)>& fits) {
  const auto in_usual_waves = [&](uint32_t chunk) {
    return PassRows{.chunk = chunk, .wave = std::min({chunk, kUsualWave, longest.wave})};
  };
  PassRows rows = in_usual_waves(longest.chunk);
  while (rows.chunk > 1 && !fits(rows))
    rows = in_usual_waves((rows.chunk + 1) / 2);
  const uint32_t most = std::min(longest.wave, rows.chunk);
  while (rows.wave < most) {
    const PassRows longer{.chunk = rows.chunk, .wave = std::min(2 * rows.wave, most)};
    if (!fits(longer)) break;
    rows = longer;
  }
  return rows;
}

}  // namespace dspack::runtime
