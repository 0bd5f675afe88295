#include "runtime/replay/policies/replay_policies.h"

#include <array>
#include <vector>

#include "runtime/replay/policies/lfu.h"
#include "runtime/replay/policies/random_old.h"
#include "runtime/replay/policies/s3_fifo.h"

namespace dspack::runtime {

std::span<const NamedPolicy> replay_policies() {
  static const std::vector<NamedPolicy> all = [] {
    const auto run = eviction_policies();
    std::vector<NamedPolicy> policies(run.begin(), run.end());
    const std::array<NamedPolicy, 3> others = {{
        {"lfu", "used least, with ageing",
         [](uint64_t, uint64_t) -> std::unique_ptr<EvictionPolicy> { return std::make_unique<LfuPolicy>(); }},
        {"random-old", "one of the oldest 8 %, at random",
         [](uint64_t slots, uint64_t seed) -> std::unique_ptr<EvictionPolicy> {
           return std::make_unique<RandomOldPolicy>(slots, seed);
         }},
        {"s3-fifo", "arrived first, unless used again",
         [](uint64_t slots, uint64_t) -> std::unique_ptr<EvictionPolicy> {
           return std::make_unique<S3FifoPolicy>(slots);
         }},
    }};
    policies.insert(policies.begin() + 1, others.begin(), others.end());
    return policies;
  }();
  return all;
}

}  // namespace dspack::runtime
