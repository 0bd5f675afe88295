#include "format/layer_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace dspack::format {
namespace {

// Decimal places of kWholeDepth.
constexpr size_t kPlaces = 12;

Error too_long() {
  return invalid(fmt::format("the layers would be passed in more than {} steps", kMaxPassLayers));
}

/// Scans a text from the front, ignoring spaces.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text), size_(text.size()) { skip_spaces(); }

  [[nodiscard]] bool at_end() const { return rest_.empty(); }

  /// Whether `c` comes next; if so, skips it and the spaces after it.
  bool take(char c) {
    const bool found = take_within(c);
    if (found) skip_spaces();
    return found;
  }

  /// As `take` within a number, which a space ends.
  bool take_within(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  /// The digits that come next, perhaps none.
  std::string_view digits() {
    const std::string_view found = rest_.substr(0, rest_.find_first_not_of("0123456789"));
    rest_.remove_prefix(found.size());
    return found;
  }

  void skip_spaces() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t"), rest_.size())); }

  [[nodiscard]] Error expected(std::string_view what) const {
    if (rest_.empty()) return invalid(fmt::format("{} is missing at the end", what));
    return invalid(fmt::format("{} is missing at character {}", what, size_ - rest_.size() + 1));
  }

 private:
  std::string_view rest_;
  size_t size_;
};

/// The value of digits, at most `most` + 1.
uint64_t bounded(std::string_view digits, uint64_t most) {
  uint64_t value = 0;
  for (const char digit : digits) {
    value = value * 10 + static_cast<uint64_t>(digit - '0');
    if (value > most) return most + 1;
  }
  return value;
}

Result<uint32_t> scan_layer(Scanner& scanner) {
  const std::string_view digits = scanner.digits();
  if (digits.empty()) return scanner.expected("the number of a layer");
  const uint64_t layer = bounded(digits, kMaxId);
  if (layer > kMaxId) return invalid(fmt::format("there is no layer above {}", kMaxId));
  scanner.skip_spaces();
  return static_cast<uint32_t>(layer);
}

Result<DepthShare> scan_share(Scanner& scanner) {
  constexpr std::string_view kWhat = "a decimal from 0 to 1";
  const std::string_view whole = scanner.digits();
  const std::string_view places = scanner.take_within('.') ? scanner.digits() : std::string_view();
  if (whole.empty() && places.empty()) return scanner.expected(kWhat);
  if (places.size() > kPlaces) return invalid(fmt::format("a decimal has more than {} places", kPlaces));
  scanner.skip_spaces();
  DepthShare share = bounded(places, kWholeDepth);
  for (size_t place = places.size(); place < kPlaces; ++place)
    share *= 10;
  share += bounded(whole, 1) * kWholeDepth;
  if (share > kWholeDepth) return invalid("a share of the depth lies outside 0 to 1");
  return share;
}

std::string share_text(DepthShare share) {
  if (share == 0) return "0";
  if (share == kWholeDepth) return "1";
  std::string text = fmt::format("0.{:0{}}", share, kPlaces);
  text.erase(text.find_last_not_of('0') + 1);
  return text;
}

/// Appends `first` to `last`, both included.
Result<void> append_range(LayerMap& map, uint32_t first, uint32_t last) {
  if (last - first >= kMaxPassLayers - map.size()) return too_long();
  for (uint32_t layer = first; layer <= last; ++layer)
    map.emplace_back(layer);
  return {};
}

Result<LayerMap> expand(const RatioRepeat& ratio, uint32_t layers) {
  LayerMap map;
  const auto next = [&map] { return map.empty() ? 0 : map.back().value + 1; };
  for (const DepthRange& range : ratio) {
    // A start of 1 would be the layer after the last one.
    const auto start = static_cast<uint32_t>(std::min<uint64_t>(range.start * layers / kWholeDepth, layers - 1));
    const auto end = static_cast<uint32_t>((range.end * (layers - 1) + kWholeDepth - 1) / kWholeDepth);
    TRY(append_range(map, std::min(next(), start), end));
  }
  if (next() < layers) TRY(append_range(map, next(), layers - 1));
  return map;
}

}  // namespace

Result<LayerMap> parse_layers(std::string_view text) {
  Scanner scanner(text);
  LayerMap map;
  do {
    TRY_ASSIGN(const uint32_t first, scan_layer(scanner));
    uint32_t last = first;
    if (scanner.take('-')) {
      TRY_ASSIGN(last, scan_layer(scanner));
    }
    if (last < first)
      return invalid(fmt::format("{0}-{1} descends; write the layers one by one: {0},...,{1}", first, last));
    TRY(append_range(map, first, last));
  } while (scanner.take(','));
  if (!scanner.at_end()) return scanner.expected("a comma or hyphen");
  return map;
}

std::string to_string(const LayerMap& layers) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < layers.size(); begin = end) {
    end = begin + 1;
    while (end < layers.size() && layers[end].value == layers[end - 1].value + 1)
      ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", layers[begin].value);
    if (end - begin > 1) text += fmt::format("-{}", layers[end - 1].value);
  }
  return text;
}

Result<RatioRepeat> parse_ratio_repeat(std::string_view text) {
  Scanner scanner(text);
  RatioRepeat ratio;
  do {
    if (!scanner.take('(')) return scanner.expected("an opening parenthesis");
    TRY_ASSIGN(const DepthShare one, scan_share(scanner));
    if (!scanner.take(',')) return scanner.expected("a comma");
    TRY_ASSIGN(const DepthShare other, scan_share(scanner));
    if (!scanner.take(')')) return scanner.expected("a closing parenthesis");
    ratio.push_back({.start = std::min(one, other), .end = std::max(one, other)});
    if (ratio.size() > kMaxPassLayers) return too_long();
  } while (scanner.take(','));
  if (!scanner.at_end()) return scanner.expected("a comma");
  return ratio;
}

std::string to_string(const RatioRepeat& ratio) {
  std::string text;
  for (const DepthRange& range : ratio)
    text += fmt::format("{}({},{})", text.empty() ? "" : ",", share_text(range.start), share_text(range.end));
  return text;
}

Result<LayerMap> layer_map_of(const Json& value) {
  if (!value.is_array() || value.empty()) return invalid("a layer map is a list of at least one layer number");
  if (value.size() > kMaxPassLayers) return too_long();
  LayerMap map;
  for (const Json& layer : value) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() > kMaxId)
      return invalid(fmt::format("a layer map has an entry that is no layer number from 0 to {}", kMaxId));
    map.emplace_back(static_cast<uint32_t>(layer.get<uint64_t>()));
  }
  return map;
}

Json layer_map_json(const LayerMap& layers) {
  Json list = Json::array();
  for (const LayerId layer : layers)
    list.push_back(layer.value);
  return list;
}

Result<LayerMap> select_layers(const LayerSelection& selection, uint32_t layers) {
  DSPACK_CHECK(layers > 0 && layers - 1 <= kMaxId, "no number of layers");
  if (const auto* ratio = std::get_if<RatioRepeat>(&selection)) return expand(*ratio, layers);
  const auto& map = std::get<LayerMap>(selection);
  const auto beyond = std::ranges::find_if(map, [layers](LayerId layer) { return layer.value >= layers; });
  if (beyond == map.end()) return map;
  return invalid(fmt::format("layer {} is none of this model's; they are 0 to {}", beyond->value, layers - 1));
}

}  // namespace dspack::format
