// A self-contained page for a browser: a frame with its style, script and data. The page's policy allows style and
// script by digest, so that nothing else in it can run; data from outside appears only in its JSON. format/page has the
// script and the style that all such pages begin with.
// Threads: pure functions. Errors: none.
#pragma once

#include <string>
#include <string_view>

#include "format/json.h"

namespace dspack::format {

/// The frame marks places for the parts with "{{style}}", "{{script}}", "{{style-digest}}", "{{script-digest}}" and
/// "{{data}}".
struct HtmlParts {
  std::string_view frame;
  std::string_view style;
  std::string_view script;
};

/// No text in the data can end the <script> element that holds it.
[[nodiscard]] std::string html_page(const HtmlParts& parts, const Json& data);

/// The digest of a text as a Content-Security-Policy writes it: sha256-...
[[nodiscard]] std::string policy_digest(std::string_view text);

}  // namespace dspack::format
