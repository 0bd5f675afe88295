#include "runtime/serve/web_page.h"

#include <fmt/format.h>

#include "format/html_page.h"

namespace dspack::runtime {

WebPage make_web_page() {
  // The frame has no policy of its own: that no other page may frame this one can be said in a header alone.
  return {.html = format::html_page({.frame = kWebPageFrame, .style = kWebPageStyle, .script = kWebPageScript}, {}),
          .policy = fmt::format("default-src 'none'; connect-src 'self'; img-src data:; style-src '{}'; script-src "
                                "'{}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                                format::policy_digest(kWebPageStyle), format::policy_digest(kWebPageScript))};
}

}  // namespace dspack::runtime
