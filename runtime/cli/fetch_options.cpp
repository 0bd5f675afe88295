#include "runtime/cli/fetch_options.h"

#include <string>

#include "format/base/size_text.h"

namespace dspack::runtime {

void add_fetch_option(CLI::App& app, std::optional<uint64_t>& most_bytes) {
  app.add_option_function<std::string>(
         "--max-fetch",
         [&most_bytes](const std::string& text) {
           const auto size = parse_size(text);
           if (!size) throw CLI::ValidationError("--max-fetch", size.error().message);
           most_bytes = *size;
         },
         "Most bytes of routed experts read from disk or network for a prompt and its answer, re-reads included: a "
         "prompt that is expected to take more is refused, and a run that comes to take more ends with status 1")
      ->type_name("BYTES");
}

}  // namespace dspack::runtime
