#include "runtime/text/chat_template.h"

#include <fmt/format.h>

#include <cstdint>

#include "runtime/text/chat_deepseek_v3.h"
#include "runtime/text/json.h"

namespace dspack::runtime {
namespace {

/// FNV-1a, 64 bits. With the length it tells apart templates that people wrote; nobody gains by forging one.
uint64_t fingerprint(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3;
  }
  return hash;
}

// chat_template of deepseek-ai/DeepSeek-V3, tokenizer_config.json.
constexpr size_t kDeepSeekV3Bytes = 2311;
constexpr uint64_t kDeepSeekV3Fingerprint = 0xe090e2bbca6665b8;

}  // namespace

Result<Role> parse_role(std::string_view name) {
  for (const Role role : {Role::system, Role::user, Role::assistant, Role::tool}) {
    if (name == to_string(role)) return role;
  }
  return Error{ErrorKind::invalid,
               fmt::format("unknown role {}; known are system, user, assistant, tool", quote(name))};
}

std::string_view to_string(Role role) {
  switch (role) {
    case Role::system: return "system";
    case Role::user: return "user";
    case Role::assistant: return "assistant";
    case Role::tool: return "tool";
  }
  return "";
}

Result<ChatTemplate> ChatTemplate::recognise(std::string_view jinja_source) {
  // Jinja drops one newline at the end of a source; files have it, JSON fields do not.
  if (jinja_source.ends_with('\n')) jinja_source.remove_suffix(1);
  const uint64_t hash = fingerprint(jinja_source);
  if (jinja_source.size() == kDeepSeekV3Bytes && hash == kDeepSeekV3Fingerprint) return ChatTemplate(Kind::deepseek_v3);
  return Error{ErrorKind::unsupported,
               fmt::format("this chat template is not known ({} bytes, fingerprint {:016x}); known is DeepSeek-V3's; "
                           "plain prompts work without one",
                           jinja_source.size(), hash)};
}

std::string_view ChatTemplate::name() const {
  switch (kind_) {
    case Kind::deepseek_v3: return "DeepSeek-V3";
  }
  return "";
}

Result<std::string> ChatTemplate::render(std::span<const ChatMessage> messages, const RenderOptions& options) const {
  switch (kind_) {
    case Kind::deepseek_v3: return render_deepseek_v3(messages, options);
  }
  return Error{ErrorKind::unsupported, "no renderer"};
}

}  // namespace dspack::runtime
