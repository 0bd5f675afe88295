// What becomes of every field of a request that this server knows of: those of OpenAI's and Anthropic's APIs, and those
// that llama-server, vLLM and SGLang add to them. A field is obeyed, or harmless (no answer depends on it), or refused
// by name where it asks for something. A field that is in no table is no error, and is said in the server's log.
// GET /openapi.json and docs/serve.md are made of this table.
// Threads: thread-safe (pure functions). Errors: unsupported (a refused field; named).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/serve/json_fields.h"

namespace dspack::runtime {

/// Bits, as a field may be one of several APIs.
enum RequestApi : uint8_t { kChat = 1, kCompletions = 2, kResponses = 4, kMessages = 8 };

struct RequestField {
  enum class Treatment { obeyed, harmless, refused };
  using Idle = bool (*)(const OrderedJson& value, const OrderedJson& request);

  std::string_view name;
  uint8_t apis = 0;
  Treatment treatment = Treatment::obeyed;
  std::string_view example;  // JSON; of a refused field one that asks for something
  std::string_view text;     // what it does; of a harmless field why it does nothing; of a refused one what is lacking
  Idle is_idle = nullptr;    // of a refused field: whether the value asks for nothing; nullptr: every value asks
  std::string_view idle = {};  // these values, in words
};

[[nodiscard]] std::span<const RequestField> request_fields();
[[nodiscard]] std::string_view to_string(RequestField::Treatment treatment);

/// One more line for the log on what was passed over; beyond eight of one request, nothing.
void remark(std::vector<std::string>& remarks, std::string line);
/// Looks at every field of a request, an object. `remarks` gets a line on each that is in no table.
[[nodiscard]] Result<void> check_fields(const OrderedJson& request, RequestApi api, std::vector<std::string>& remarks);

}  // namespace dspack::runtime
