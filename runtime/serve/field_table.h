// Treatment of every known request field: those of OpenAI's and Anthropic's APIs, and those that llama-server, vLLM and
// SGLang add. A field is obeyed, or harmless (no answer depends on it), or refused by name unless its value asks for
// nothing. An unknown field is no error; it is logged. GET /openapi.json and docs/serve.md are generated from this
// table; the paths of the server are here, too.
// Threads: thread-safe (pure functions). Errors: unsupported (a refused field; named).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/chat_message.h"

namespace dspack::runtime {

/// Bits, since a field may belong to several APIs.
enum RequestApi : uint8_t { kChat = 1, kCompletions = 2, kResponses = 4, kMessages = 8 };

struct RequestField {
  enum class Treatment { obeyed, harmless, refused };
  using Idle = bool (*)(const OrderedJson& value, const OrderedJson& request);

  std::string_view name;
  uint8_t apis = 0;
  Treatment treatment = Treatment::obeyed;
  std::string_view example;    // JSON; for a refused field a value that is refused
  std::string_view text;       // effect; if harmless: why it has none; if refused: the reason
  Idle is_idle = nullptr;      // if refused: whether the value asks for nothing; nullptr: no value does
  std::string_view idle = {};  // these values, in words
};

[[nodiscard]] std::span<const RequestField> request_fields();
[[nodiscard]] std::string_view to_string(RequestField::Treatment treatment);

/// Adds a log line on an ignored part of a request; dropped after eight for the same request.
void remark(std::vector<std::string>& remarks, std::string line);
/// Checks every field of a request, an object. `remarks` gets a line for each unknown field.
[[nodiscard]] Result<void> check_fields(const OrderedJson& request, RequestApi api, std::vector<std::string>& remarks);

/// "GET, HEAD" or "POST"; empty: no such path.
[[nodiscard]] std::string_view allowed_methods(std::string_view path);
/// The paths as OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.0). `x-treatment` is a field's treatment, `x-unless`
/// lists the accepted values of a refused field.
[[nodiscard]] OrderedJson openapi_description();

}  // namespace dspack::runtime
