// Recorded routes: the experts that the router picked for every token, as JSON Lines. docs/traces.md specifies the
// format.
// Threads: thread-safe (pure functions on plain values). Errors: invalid, in one line, naming the field; unsupported
// for another version.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "runtime/experts/eviction_policy.h"

namespace dspack::runtime {

/// A layer with routed experts.
struct RoutedLayerShape {
  LayerId layer;
  uint32_t experts = 0;
  uint64_t expert_bytes = 0;  // bytes read per miss
  bool is_by_token = false;   // its experts are known before the pass
  bool operator==(const RoutedLayerShape&) const = default;
};

/// The first line of a trace.
struct RouteHeader {
  std::string model_type;                // as in config.json
  uint32_t top_k = 0;                    // experts per token
  std::vector<RoutedLayerShape> layers;  // ascending
  bool operator==(const RouteHeader&) const = default;

  /// Null: the trace has no such layer.
  [[nodiscard]] const RoutedLayerShape* find(LayerId layer) const;
};

/// The routes of one layer in one pass.
struct RoutedLayer {
  uint64_t pass = 0;  // counted from 0
  Phase phase = Phase::decode;
  uint32_t draft_rows = 0;  // the last rows: drafted tokens
  LayerId layer;
  std::vector<uint32_t> ids;  // [rows, top_k], rows oldest first, experts as the router ranks them
  bool operator==(const RoutedLayer&) const = default;
};

/// The first `rows` drafted rows of a pass were accepted.
struct AcceptedDrafts {
  uint64_t pass = 0;
  uint32_t rows = 0;
  bool operator==(const AcceptedDrafts&) const = default;
};

using RouteLine = std::variant<RoutedLayer, AcceptedDrafts>;

/// Limits on the rows of a pass and the bytes of a line, beyond which a trace is rejected.
inline constexpr uint32_t kMaxRouteRows = 1U << 16U;
inline constexpr uint64_t kMaxRouteLineBytes = 8ULL << 20U;

// One line each, without the line feed.
[[nodiscard]] std::string to_line(const RouteHeader& header);
[[nodiscard]] std::string to_line(const RoutedLayer& routed, uint32_t top_k);
[[nodiscard]] std::string to_line(const AcceptedDrafts& accepted);

[[nodiscard]] Result<RouteHeader> parse_route_header(std::string_view line);
/// Also checks the line against the header: the layer exists, and every row has top_k different experts of it.
[[nodiscard]] Result<RouteLine> parse_route_line(std::string_view line, const RouteHeader& header);

}  // namespace dspack::runtime
