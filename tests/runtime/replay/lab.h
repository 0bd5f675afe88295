// Small workloads and policies under test.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "runtime/replay/simulate.h"

namespace dspack::runtime::lab {

inline RouteHeader header(uint32_t layers, uint32_t experts, uint32_t top_k) {
  RouteHeader made{.model_type = "test", .top_k = top_k, .layers = {}};
  for (uint32_t layer = 0; layer < layers; ++layer)
    made.layers.push_back({.layer = LayerId(layer), .experts = experts, .expert_bytes = 100});
  return made;
}

inline void add(Workload& workload, RoutedLayer routed) {
  REQUIRE(workload.add(RouteLine(std::move(routed))));
}

/// Tokens that are decoded one after the other: routes[token][layer] lists experts.
inline Workload decode(const RouteHeader& header, const std::vector<std::vector<std::vector<uint32_t>>>& routes) {
  Workload workload(header);
  for (uint64_t pass = 0; pass < routes.size(); ++pass) {
    for (uint32_t layer = 0; layer < routes[pass].size(); ++layer)
      add(workload, {.pass = pass, .layer = LayerId(layer), .ids = routes[pass][layer]});
  }
  return workload;
}

/// Random routes in which low experts come more often, and last token's come again.
inline Workload random_decode(uint32_t layers, uint32_t experts, uint32_t top_k, uint64_t tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<std::vector<uint32_t>>> routes(tokens, std::vector<std::vector<uint32_t>>(layers));
  for (uint64_t token = 0; token < tokens; ++token) {
    for (uint32_t layer = 0; layer < layers; ++layer) {
      std::vector<uint32_t>& row = routes[token][layer];
      while (row.size() < top_k) {
        uint32_t expert = static_cast<uint32_t>(std::min(random() % experts, random() % experts));
        if (token > 0 && random() % 3 == 0) expert = routes[token - 1][layer][random() % top_k];
        if (std::ranges::find(row, expert) == row.end()) row.push_back(expert);
      }
    }
  }
  return decode(header(layers, experts, top_k), routes);
}

inline ExpertKey key(uint32_t layer, uint32_t expert) {
  return {LayerId(layer), ExpertId(expert)};
}

inline bool any(ExpertKey /*key*/) {
  return true;
}

}  // namespace dspack::runtime::lab
