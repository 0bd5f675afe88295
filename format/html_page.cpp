#include "format/html_page.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "format/base/check.h"
#include "format/digest.h"
#include "format/http/content_digest.h"

namespace dspack::format {
namespace {

/// Escapes "<", so that no text can contain "</script>" or "<!--".
std::string embedded_json(const Json& data) {
  std::string text = data.dump(-1, ' ', true, Json::error_handler_t::replace);
  std::string harmless;
  harmless.reserve(text.size());
  for (const char c : text)
    c == '<' ? harmless += "\\u003c" : harmless += c;
  return harmless;
}

}  // namespace

std::string policy_digest(std::string_view text) {
  const Digest digest = sha256(text);
  return "sha256-" + base64(std::as_bytes(std::span(digest.bytes)));
}

std::string html_page(const HtmlParts& parts, const Json& data) {
  const std::string json = embedded_json(data);
  const std::string style_digest = policy_digest(parts.style);
  const std::string script_digest = policy_digest(parts.script);
  const std::array<std::pair<std::string_view, std::string_view>, 5> places = {{{"style-digest", style_digest},
                                                                                {"script-digest", script_digest},
                                                                                {"style", parts.style},
                                                                                {"script", parts.script},
                                                                                {"data", json}}};
  // One pass over the frame alone: inserted text is never searched for places.
  std::string page;
  std::string_view rest = parts.frame;
  for (size_t open = 0; (open = rest.find("{{")) != std::string_view::npos;) {
    const size_t close = rest.find("}}", open);
    const std::string_view name = rest.substr(open + 2, close - open - 2);
    const auto part = std::ranges::find(places, name, [](const auto& each) { return each.first; });
    DSPACK_CHECK(part != places.end(), "the page's frame has an unknown place");
    page.append(rest.substr(0, open)).append(part->second);
    rest.remove_prefix(close + 2);
  }
  return page.append(rest);
}

}  // namespace dspack::format
