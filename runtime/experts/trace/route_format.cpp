#include "runtime/experts/trace/route_format.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/json.h"

namespace dspack::runtime {

namespace {

constexpr char kFormat[] = "dspack-routes";
constexpr uint64_t kVersion = 1;
// Far beyond any model; bounds the memory that a replay needs per expert.
constexpr size_t kMaxLayers = 1024;
constexpr uint64_t kMaxExperts = 1U << 22U;  // sum over all layers
constexpr uint64_t kMaxTopK = 256;
constexpr uint64_t kMaxPass = 1ULL << 53U;  // the largest integer that every JSON reader can hold
constexpr uint64_t kMaxExpertBytes = 1ULL << 40U;

Result<format::Json> parse_object(std::string_view line) {
  if (line.size() > kMaxRouteLineBytes) {
    return invalid(fmt::format("the line has {} bytes; {} are allowed", line.size(), kMaxRouteLineBytes));
  }
  TRY_ASSIGN(format::Json object, format::parse_json(line, format::kTraceLineDocument));
  if (!object.is_object()) return invalid("the line is not a JSON object");
  return object;
}

Result<uint64_t> number_in(const format::Json& object, std::string_view key, uint64_t low, uint64_t high) {
  TRY_ASSIGN(const uint64_t value, format::json_uint(object, key));
  if (value >= low && value <= high) return value;
  return invalid(fmt::format("\"{}\" is {}; {} to {} is possible", key, value, low, high));
}

Result<RoutedLayerShape> parse_layer(const format::Json& object) {
  if (!object.is_object()) return invalid("\"layers\" holds something else than objects");
  TRY_ASSIGN(const uint64_t layer, number_in(object, "layer", 0, kMaxId));
  TRY_ASSIGN(const uint64_t experts, number_in(object, "experts", 1, kMaxId));
  TRY_ASSIGN(const uint64_t bytes, number_in(object, "expert_bytes", 1, kMaxExpertBytes));
  bool is_by_token = false;
  if (const auto told = object.find("by_token"); told != object.end()) {
    if (!told->is_boolean()) return invalid(R"("by_token" is neither true nor false)");
    is_by_token = told->get<bool>();
  }
  return RoutedLayerShape{.layer = LayerId(static_cast<uint32_t>(layer)),
                          .experts = static_cast<uint32_t>(experts),
                          .expert_bytes = bytes,
                          .is_by_token = is_by_token};
}

Result<void> append_row(const format::Json& row, const RoutedLayerShape& shape, uint32_t top_k,
                        std::vector<uint32_t>& ids) {
  if (!row.is_array() || row.size() != top_k) {
    return invalid(fmt::format("a row of \"ids\" is not a list of {} experts (top_k)", top_k));
  }
  const size_t first = ids.size();
  for (const format::Json& id : row) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= shape.experts) {
      return invalid(fmt::format("a row of \"ids\" names {}; layer {} has the experts 0 to {}", id.dump(),
                                 shape.layer.value, shape.experts - 1));
    }
    const auto expert = id.get<uint32_t>();
    if (std::find(ids.begin() + static_cast<ptrdiff_t>(first), ids.end(), expert) != ids.end()) {
      return invalid(fmt::format("a row of \"ids\" names expert {} twice", expert));
    }
    ids.push_back(expert);
  }
  return {};
}

Result<AcceptedDrafts> parse_accepted(const format::Json& object) {
  TRY_ASSIGN(const uint64_t pass, number_in(object, "pass", 0, kMaxPass));
  TRY_ASSIGN(const uint64_t rows, number_in(object, "accepted_drafts", 0, kMaxRouteRows));
  return AcceptedDrafts{.pass = pass, .rows = static_cast<uint32_t>(rows)};
}

}  // namespace

const RoutedLayerShape* RouteHeader::find(LayerId layer) const {
  const auto at = std::ranges::lower_bound(layers, layer, {}, &RoutedLayerShape::layer);
  return at != layers.end() && at->layer == layer ? &*at : nullptr;
}

std::string to_line(const RouteHeader& header) {
  std::string layers;
  for (const RoutedLayerShape& shape : header.layers) {
    layers += fmt::format(R"({}{{"layer":{},"experts":{},"expert_bytes":{}{}}})", layers.empty() ? "" : ",",
                          shape.layer.value, shape.experts, shape.expert_bytes,
                          shape.is_by_token ? R"(,"by_token":true)" : "");
  }
  return fmt::format(R"({{"format":"{}","version":{},"model_type":{},"top_k":{},"layers":[{}]}})", kFormat, kVersion,
                     format::Json(header.model_type).dump(), header.top_k, layers);
}

std::string to_line(const RoutedLayer& routed, uint32_t top_k) {
  std::string line = fmt::format(R"({{"pass":{},"phase":"{}","layer":{})", routed.pass,
                                 routed.phase == Phase::prefill ? "prefill" : "decode", routed.layer.value);
  if (routed.draft_rows > 0) line += fmt::format(R"(,"draft_rows":{})", routed.draft_rows);
  line += R"(,"ids":[)";
  for (size_t i = 0; i < routed.ids.size(); ++i) {
    line += i % top_k == 0 ? (i == 0 ? "[" : "],[") : ",";
    line += fmt::to_string(routed.ids[i]);
  }
  return line + "]]}";
}

std::string to_line(const AcceptedDrafts& accepted) {
  return fmt::format(R"({{"pass":{},"accepted_drafts":{}}})", accepted.pass, accepted.rows);
}

Result<RouteHeader> parse_route_header(std::string_view line) {
  TRY_ASSIGN(const format::Json object, parse_object(line));
  TRY_ASSIGN(const std::string format, format::json_string(object, "format"));
  if (format != kFormat) return invalid(fmt::format("\"format\" is not \"{}\"", kFormat));
  TRY_ASSIGN(const uint64_t version, format::json_uint(object, "version"));
  if (version != kVersion) {
    return Error{ErrorKind::unsupported,
                 fmt::format("\"version\" is {}; this program reads version {}", version, kVersion)};
  }
  RouteHeader header;
  TRY_ASSIGN(header.model_type, format::json_string(object, "model_type"));
  TRY_ASSIGN(const uint64_t top_k, number_in(object, "top_k", 1, kMaxTopK));
  header.top_k = static_cast<uint32_t>(top_k);
  TRY_ASSIGN(const format::Json* layers, format::json_array(object, "layers"));
  if (layers->empty() || layers->size() > kMaxLayers) {
    return invalid(fmt::format("\"layers\" has {} entries; 1 to {} is possible", layers->size(), kMaxLayers));
  }
  uint64_t experts = 0;
  for (const format::Json& entry : *layers) {
    TRY_ASSIGN(const RoutedLayerShape shape, parse_layer(entry));
    if (!header.layers.empty() && shape.layer <= header.layers.back().layer) {
      return invalid(fmt::format("\"layers\" does not ascend at layer {}", shape.layer.value));
    }
    if (shape.experts < header.top_k) {
      return invalid(fmt::format("layer {} has {} experts, less than top_k", shape.layer.value, shape.experts));
    }
    experts += shape.experts;
    header.layers.push_back(shape);
  }
  if (experts > kMaxExperts) return invalid(fmt::format("{} experts in all; {} are possible", experts, kMaxExperts));
  return header;
}

Result<RouteLine> parse_route_line(std::string_view line, const RouteHeader& header) {
  TRY_ASSIGN(const format::Json object, parse_object(line));
  RouteLine parsed;
  if (object.contains("accepted_drafts")) {
    TRY_ASSIGN(parsed, parse_accepted(object));
    return parsed;
  }
  RoutedLayer routed;
  TRY_ASSIGN(routed.pass, number_in(object, "pass", 0, kMaxPass));
  TRY_ASSIGN(const std::string phase, format::json_string(object, "phase"));
  if (phase != "prefill" && phase != "decode") return invalid(R"("phase" is neither "prefill" nor "decode")");
  routed.phase = phase == "prefill" ? Phase::prefill : Phase::decode;
  TRY_ASSIGN(const uint64_t layer, number_in(object, "layer", 0, kMaxId));
  routed.layer = LayerId(static_cast<uint32_t>(layer));
  const RoutedLayerShape* shape = header.find(routed.layer);
  if (shape == nullptr) return invalid(fmt::format("layer {} is not among the header's", layer));
  TRY_ASSIGN(const format::Json* rows, format::json_array(object, "ids"));
  if (rows->empty() || rows->size() > kMaxRouteRows) {
    return invalid(fmt::format("\"ids\" has {} rows; 1 to {} is possible", rows->size(), kMaxRouteRows));
  }
  if (object.contains("draft_rows")) {
    TRY_ASSIGN(const uint64_t drafts, number_in(object, "draft_rows", 0, rows->size()));
    routed.draft_rows = static_cast<uint32_t>(drafts);
  }
  routed.ids.reserve(rows->size() * header.top_k);
  for (const format::Json& row : *rows)
    TRY(append_row(row, *shape, header.top_k, routed.ids));
  parsed = std::move(routed);
  return parsed;
}

}  // namespace dspack::runtime
