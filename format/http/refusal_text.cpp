#include "format/http/refusal_text.h"

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/document_bounds.h"
#include "format/http/headers.h"
#include "format/json.h"

namespace dspack::format {
namespace {

std::string json_text(std::string_view body) {
  const auto json = parse_json(body, kRefusalDocument);
  if (!json || !json->is_object()) return {};
  for (const char* key : {"error", "message"}) {
    if (const auto text = json_string(*json, key)) return *text;
  }
  std::string texts;
  const auto errors = json->find("errors");
  if (errors == json->end() || !errors->is_array()) return {};
  for (const Json& error : *errors) {
    const auto text = json_string(error.is_object() ? error : Json::object(), "message");
    if (text) texts.append(texts.empty() ? "" : "; ").append(*text);
  }
  return texts;
}

/// What stands between <NAME> and </NAME>.
std::string_view element(std::string_view xml, std::string_view name) {
  const std::string open = fmt::format("<{}>", name);
  const size_t begin = xml.find(open);
  if (begin == std::string_view::npos) return {};
  const std::string_view rest = xml.substr(begin + open.size());
  return rest.substr(0, rest.find('<'));
}

/// Of S3 and its kin: <Error><Code>AccessDenied</Code><Message>Request has expired</Message>... The other elements may
/// hold parts of the signed request.
std::string xml_text(std::string_view body) {
  const std::string_view code = element(body, "Code");
  const std::string_view message = element(body, "Message");
  if (code.empty() || message.empty()) return std::string(code.empty() ? message : code);
  return fmt::format("{}: {}", code, message);
}

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const bool blank = static_cast<unsigned char>(c) <= ' ' || c == 0x7f;
    if (blank && (line.empty() || line.back() == ' ')) continue;
    line += blank ? ' ' : c;
  }
  return std::string(trim_header(line));
}

}  // namespace

std::string refusal_text(std::string_view body) {
  std::string text = one_line(body);
  if (text.starts_with('{')) text = one_line(json_text(body));
  if (text.starts_with('<')) text = one_line(xml_text(body));
  return brief(without_passwords(without_queries(text)));
}

std::string without_queries(std::string_view text) {
  constexpr std::string_view kEnds = " \t\r\n\"'<>()";
  std::string shown;
  while (!text.empty()) {
    const size_t scheme = text.find("://");
    if (scheme == std::string_view::npos) break;
    const size_t end = std::min(text.find_first_of(kEnds, scheme), text.size());
    const size_t query = std::min(text.substr(0, end).find_first_of("?#", scheme), end);
    shown += text.substr(0, query);
    if (query < end) shown += "?...";
    text.remove_prefix(end);
  }
  return shown.append(text);
}

std::string without_secret(std::string text, std::string_view secret) {
  if (secret.empty()) return text;
  constexpr std::string_view kShown = "(token)";
  for (size_t at = 0; (at = text.find(secret, at)) != std::string::npos; at += kShown.size())
    text.replace(at, secret.size(), kShown);
  return text;
}

}  // namespace dspack::format
