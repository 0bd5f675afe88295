#include "runtime/experts/policy/policy_catalogue.h"

#include <fmt/format.h>

#include <array>

#include "runtime/experts/policy/lfu.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/experts/policy/random_old.h"
#include "runtime/experts/policy/reuse.h"
#include "runtime/experts/policy/s3_fifo.h"

namespace dspack::runtime {

namespace {

template <class Policy>
std::unique_ptr<EvictionPolicy> make(uint64_t /*slots*/, uint64_t /*seed*/) {
  return std::make_unique<Policy>();
}

constexpr std::array<NamedPolicy, 5> kPolicies = {{
    {"lru", "used longest ago", make<LruPolicy>},
    {"lfu", "used least, with ageing", make<LfuPolicy>},
    {"random-old", "one of the oldest 8 %, at random",
     [](uint64_t slots, uint64_t seed) -> std::unique_ptr<EvictionPolicy> {
       return std::make_unique<RandomOldPolicy>(slots, seed);
     }},
    {"s3-fifo", "arrived first, unless used again",
     [](uint64_t slots, uint64_t /*seed*/) -> std::unique_ptr<EvictionPolicy> {
       return std::make_unique<S3FifoPolicy>(slots);
     }},
    {"reuse", "worth least, as learned from the run", make<ReusePolicy>},
}};

}  // namespace

std::span<const NamedPolicy> eviction_policies() {
  return kPolicies;
}

Result<PolicyFactory> find_policy(std::string_view name) {
  std::string known;
  for (const NamedPolicy& policy : kPolicies) {
    if (policy.name == name) return PolicyFactory(policy.make);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", policy.name);
  }
  return Error{ErrorKind::invalid, fmt::format("there is no eviction policy {}; there are {}", name, known)};
}

}  // namespace dspack::runtime
