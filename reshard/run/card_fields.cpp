#include "reshard/run/card_fields.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "format/http/headers.h"
#include "reshard/run/other_loaders.h"

namespace dspack::reshard {
namespace {

constexpr size_t kMaxValueBytes = 200;
constexpr std::string_view kFence = "---";
constexpr std::string_view kLibrary = "library_name";
constexpr std::string_view kKept[] = {"license", "license_name", "license_link", "pipeline_tag", kLibrary};

/// Safe in YAML, and on a page: the rest of what a card may say is not ours to repeat.
bool is_plain(std::string_view value) {
  return !value.empty() && value.size() <= kMaxValueBytes && std::ranges::all_of(value, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("._-/:+").find(c) != std::string_view::npos;
  });
}

std::string_view take_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
}

std::string_view without_quotes(std::string_view value) {
  const bool quoted = value.size() >= 2 && value.front() == value.back() && (value[0] == '"' || value[0] == '\'');
  return quoted ? value.substr(1, value.size() - 2) : value;
}

}  // namespace

std::map<std::string, std::string> card_fields(std::string_view card) {
  std::map<std::string, std::string> fields;
  if (take_line(card) != kFence) return fields;
  while (!card.empty()) {
    const std::string_view line = take_line(card);
    if (line == kFence) return fields;
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string_view value = without_quotes(format::trim_header(line.substr(colon + 1)));
    if (is_plain(line.substr(0, colon)) && is_plain(value)) fields.emplace(line.substr(0, colon), value);
  }
  return {};
}

std::string packed_card_fields(const format::Manifest& manifest, std::string_view source_card) {
  std::map<std::string, std::string> source = card_fields(source_card);
  // Whatever library opens the source's files knows nothing of the map; those that know Mistral's own names look for
  // them in files of other names.
  const bool others_read = !unreadable_reason(manifest) && name_author(manifest) != format::NameAuthor::mistral;
  if (manifest.layer_map || !others_read) source[std::string(kLibrary)] = "dspack";
  std::string block = "---\n";
  if (!manifest.origin.repository.empty()) block += fmt::format("base_model: {}\n", manifest.origin.repository);
  for (const std::string_view field : kKept) {
    if (const auto found = source.find(std::string(field)); found != source.end())
      block += fmt::format("{}: \"{}\"\n", field, found->second);  // in quotes: "no" and "1.0" are text
  }
  return block + "tags:\n- dspack\n- mixture-of-experts\n---\n\n";
}

std::string markdown(std::string_view text) {
  constexpr std::string_view kSpecial = "|`<>&*_[]\\#~!";
  std::string shown;
  for (const char c : text) {
    const bool special = kSpecial.find(c) != std::string_view::npos;
    shown += special ? fmt::format("&#{};", static_cast<int>(c)) : std::string(1, c);
  }
  return shown;
}

}  // namespace dspack::reshard
