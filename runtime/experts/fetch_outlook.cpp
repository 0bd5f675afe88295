#include "runtime/experts/fetch_outlook.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "format/base/size.h"

namespace dspack::runtime {

namespace {

// The fewest bytes from which a rate can be derived.
constexpr uint64_t kEnoughBytes = 64'000'000;

struct Layer {
  uint64_t experts = 0, bytes = 0;          // all of them
  uint64_t missing = 0, missing_bytes = 0;  // not in memory
  uint64_t missing_network = 0;             // the part of missing_bytes across the network
};

std::map<LayerId, Layer> layers_of(const format::Checkpoint& checkpoint, const PromptShape& prompt,
                                   const ExpertPlaces& places) {
  std::map<LayerId, Layer> layers;
  for (const auto& [key, tensors] : checkpoint.experts()) {
    if (!prompt.layers.contains(key.layer)) continue;
    uint64_t bytes = 0;
    for (const uint32_t tensor : tensors)
      bytes += checkpoint.tensors()[tensor].range.size();
    const uint64_t network = places.medium_of(key) == Medium::network ? bytes : 0;
    Layer& layer = layers[key.layer];
    ++layer.experts;
    layer.bytes += bytes;
    if (places.is_in_memory(key)) continue;
    ++layer.missing;
    layer.missing_bytes += bytes;
    layer.missing_network += network;
  }
  return layers;
}

}  // namespace

double expected_experts(uint64_t experts, uint32_t top_k, uint64_t tokens) {
  if (experts == 0) return 0;
  const auto all = static_cast<double>(experts);
  const double missed = 1 - std::min(1.0, top_k / all);
  return all * (1 - std::pow(missed, static_cast<double>(tokens)));
}

FetchOutlook fetch_outlook(const format::Checkpoint& checkpoint, const PromptShape& prompt,
                           const ExpertPlaces& places) {
  double experts = 0;
  double bytes = 0;
  double network = 0;
  const std::map<LayerId, Layer> layers = layers_of(checkpoint, prompt, places);
  for (uint64_t done = 0; done < prompt.tokens; done += prompt.chunk) {
    const uint64_t tokens = std::min(prompt.chunk, prompt.tokens - done);
    for (const auto& [id, layer] : layers) {
      const double share = expected_experts(layer.experts, prompt.top_k, tokens) / static_cast<double>(layer.experts);
      if (done == 0) {
        experts += share * static_cast<double>(layer.missing);
        bytes += share * static_cast<double>(layer.missing_bytes);
        network += share * static_cast<double>(layer.missing_network);
      } else {
        experts += share * (1 - places.cached_share) * static_cast<double>(layer.experts);
        bytes += share * (1 - places.cached_share) * static_cast<double>(layer.bytes);
      }
    }
  }
  return {.experts = static_cast<uint64_t>(std::llround(experts)),
          .bytes = static_cast<uint64_t>(std::llround(bytes)),
          .network_bytes = static_cast<uint64_t>(std::llround(network))};
}

Result<void> FetchMeter::begin(uint64_t bytes) {
  if (max_fetch_ && fetched_ + bytes > *max_fetch_) {
    return Error{
        ErrorKind::budget,
        fmt::format("the prompt and its answer have read {} of experts, and --max-fetch allows {}; allow more, "
                    "or more memory for experts (--ram, --experts), so that fewer are read again",
                    size_words(fetched_), size_words(*max_fetch_))};
  }
  fetched_ += bytes;
  if (experts_++ == 0) start_ = std::chrono::steady_clock::now();
  return {};
}

void FetchMeter::end(uint64_t bytes, uint64_t read) {
  fetched_ -= std::min(fetched_, bytes - read);
  bytes_ += read;
  if (--experts_ > 0) return;
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

std::optional<double> FetchMeter::bytes_per_second() const {
  if (bytes_ < kEnoughBytes || seconds_ <= 0) return std::nullopt;
  return static_cast<double>(bytes_) / seconds_;
}

}  // namespace dspack::runtime
