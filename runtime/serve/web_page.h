// The page at `/`: chat, with the machine's activity beside it. One document that loads nothing else; its data comes
// from the API, with the key that its user types.
// Threads: a plain value. Errors: none.
#pragma once

#include <string>
#include <string_view>

namespace dspack::runtime {

struct WebPage {
  std::string html;
  std::string policy;  // its Content-Security-Policy
};

[[nodiscard]] WebPage make_web_page();

// The files of runtime/serve/page/; the build makes them constants (cmake/embed.cmake).
extern const std::string_view kWebPageFrame;
extern const std::string_view kWebPageStyle;
extern const std::string_view kWebPageScript;

}  // namespace dspack::runtime
