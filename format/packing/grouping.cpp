#include "format/packing/grouping.h"

#include <fmt/format.h>

#include <charconv>

#include "format/base/ids.h"
#include "format/base/size_text.h"
#include "format/safetensors.h"

namespace dspack::format {
namespace {

Result<Grouping> parse_expert_count(std::string_view text) {
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count == 0 || count > kMaxId) {
    return invalid(
        fmt::format("\"expert:{}\": the number of experts a file is from 1 to {}, as in \"expert:8\"", text, kMaxId));
  }
  return Grouping{.kind = Grouping::Kind::expert, .experts_per_file = count, .shard_bytes = 0};
}

Result<Grouping> parse_shard_size(std::string_view text) {
  const auto bytes = parse_size(text);
  if (!bytes) return bytes.error().in(fmt::format("\"shard:{}\"", text));
  // The header alone takes a page.
  if (*bytes <= kPageBytes) {
    return invalid(fmt::format(
        "\"shard:{}\": too small for a file with its header; more than {} bytes are needed, \"shard:5GB\" is usual",
        text, kPageBytes));
  }
  return Grouping{.kind = Grouping::Kind::shard, .experts_per_file = 1, .shard_bytes = *bytes};
}

}  // namespace

Result<Grouping> parse_grouping(std::string_view text) {
  constexpr std::string_view kExperts = "expert:";
  constexpr std::string_view kShards = "shard:";
  if (text == "expert") return Grouping{};
  if (text == "layer") return Grouping{.kind = Grouping::Kind::layer, .experts_per_file = 1, .shard_bytes = 0};
  if (text.starts_with(kExperts)) return parse_expert_count(text.substr(kExperts.size()));
  if (text.starts_with(kShards)) return parse_shard_size(text.substr(kShards.size()));
  return invalid(fmt::format(
      "\"{}\" is no grouping; use \"expert\", \"expert:N\", \"layer\" or \"shard:SIZE\" (as in \"shard:5GB\")", text));
}

std::string to_string(const Grouping& grouping) {
  switch (grouping.kind) {
    case Grouping::Kind::expert:
      return grouping.experts_per_file == 1 ? "expert" : fmt::format("expert:{}", grouping.experts_per_file);
    case Grouping::Kind::layer: return "layer";
    case Grouping::Kind::shard: return fmt::format("shard:{}", grouping.shard_bytes);
  }
  return {};
}

}  // namespace dspack::format
