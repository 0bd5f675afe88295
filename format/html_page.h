// One page for a browser that needs nothing else: a frame with its style, its script and data in it. The page's policy
// names style and script by digest, so that nothing else in it can run; data from outside stands in its JSON alone.
// format/page has the script and the style that all such pages begin with.
// Threads: pure functions. Errors: none.
#pragma once

#include <string>
#include <string_view>

#include "format/json.h"

namespace dspack::format {

/// The frame has "{{style}}", "{{script}}", "{{style-digest}}", "{{script-digest}}" and "{{data}}" where these belong.
struct HtmlParts {
  std::string_view frame;
  std::string_view style;
  std::string_view script;
};

/// None of the data's text can end the <script> element that holds it.
[[nodiscard]] std::string html_page(const HtmlParts& parts, const Json& data);

/// A text as a Content-Security-Policy names it: sha256-...
[[nodiscard]] std::string policy_digest(std::string_view text);

}  // namespace dspack::format
