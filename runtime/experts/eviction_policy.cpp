#include "runtime/experts/eviction_policy.h"

#include <fmt/format.h>
#include <array>

#include "runtime/experts/policy/lru.h"
#include "runtime/experts/policy/reuse.h"

namespace dspack::runtime {
namespace {

constexpr std::array<NamedPolicy, 2> kPolicies = {{
    {"lru", "used longest ago", []() -> std::unique_ptr<EvictionPolicy> { return std::make_unique<LruPolicy>(); }},
    {"reuse", "worth least, as learned from the run",
     []() -> std::unique_ptr<EvictionPolicy> { return std::make_unique<ReusePolicy>(); }},
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
