#include "runtime/serve/web_page.h"

#include <fmt/format.h>

#include "format/html_page.h"

namespace dspack::runtime {

WebPage make_web_page() {
  // No policy in the frame itself: frame-ancestors only works in a header.
  return {.html = format::html_page({.frame = kWebPageFrame, .style = kWebPageStyle, .script = kWebPageScript}, {}),
          .policy = fmt::format("default-src 'none'; connect-src 'self'; img-src data:; style-src '{}'; script-src "
                                "'{}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                                format::policy_digest(kWebPageStyle), format::policy_digest(kWebPageScript))};
}

}  // namespace dspack::runtime
