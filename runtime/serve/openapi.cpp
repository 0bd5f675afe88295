#include "runtime/serve/openapi.h"

#include <algorithm>
#include <string>

#include "dspack_version.h"
#include "runtime/serve/field_table.h"
#include "runtime/text/schema_keywords.h"
#include "runtime/text/string_formats.h"

namespace dspack::runtime {
namespace {

struct Route {
  std::string_view path;  // "{id}" at the end: any name
  std::string_view summary;
  uint8_t api = 0;  // bit of RequestApi; 0: its body has no field table
  bool is_get = false;
  std::string_view fields = {};  // body fields, if it has no table
};

constexpr Route kRoutes[] = {
    {"/v1/chat/completions", "OpenAI's chat", kChat},
    {"/v1/completions", "A text, or token ids, is continued as it is", kCompletions},
    {"/v1/responses", "OpenAI's newer form; nothing is kept", kResponses},
    {"/v1/messages", "Anthropic's chat", kMessages},
    {"/v1/messages/count_tokens", "The tokens of such a request", kMessages},
    {"/apply-template", "The text that the model reads", kChat},
    {"/tokenize", "A text's token ids", 0, false, "content,prompt,add_special"},
    {"/detokenize", "The text of token ids", 0, false, "tokens"},
    {"/v1/models", "The one model", 0, true},
    {"/v1/models/{id}", "The one model", 0, true},
    {"/health", "A sign of life", 0, true},
    {"/v1/health", "A sign of life", 0, true},
    {"/version", "The version of dspack", 0, true},
    {"/props", "Settings", 0, true},
    {"/metrics", "Counts in Prometheus' form", 0, true},
    {"/machine", "The machine at work, as server-sent events", 0, true},
    {"/openapi.json", "This description", 0, true},
    {"/", "A page to chat", 0, true},
};

OrderedJson properties_of(const Route& route) {
  OrderedJson properties = OrderedJson::object();
  for (size_t at = 0; at < route.fields.size();) {
    const size_t end = std::min(route.fields.find(',', at), route.fields.size());
    properties[std::string(route.fields.substr(at, end - at))] = OrderedJson::object();
    at = end + 1;
  }
  for (const RequestField& field : request_fields()) {
    if ((field.apis & route.api) == 0) continue;
    const OrderedJson example = OrderedJson::parse(field.example);
    OrderedJson property = {{"x-treatment", to_string(field.treatment)}, {"examples", OrderedJson::array({example})}};
    if (!field.text.empty()) property["description"] = field.text;
    if (!field.idle.empty()) property["x-unless"] = field.idle;
    properties[std::string(field.name)] = std::move(property);
  }
  return properties;
}

OrderedJson operation(const Route& route) {
  OrderedJson described = {{"summary", route.summary}, {"responses", {{"200", {{"description", "The answer"}}}}}};
  if (route.path.ends_with("{id}")) {
    described["parameters"] =
        OrderedJson::array({{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  }
  if (route.is_get) return described;
  described["requestBody"] = {
      {"required", true},
      {"content", {{"application/json", {{"schema", {{"type", "object"}, {"properties", properties_of(route)}}}}}}}};
  described["responses"]["400"] = {{"description", "A field is wrong, or asks for what is not there"}};
  return described;
}

/// The schema keywords and string formats that answers can be held to.
OrderedJson schema_description() {
  OrderedJson keywords = OrderedJson::array();
  for (const SchemaKeyword& each : schema_keywords()) {
    OrderedJson keyword = {{"name", each.name}, {"treatment", to_string(each.treatment)}};
    if (!each.text.empty()) keyword["description"] = each.text;
    keywords.push_back(std::move(keyword));
  }
  return {{"keywords", std::move(keywords)}, {"formats", known_formats()}};
}

}  // namespace

std::string_view allowed_methods(std::string_view path) {
  const auto is_of = [path](const Route& route) {
    if (!route.path.ends_with("{id}")) return path == route.path;
    return path.starts_with(route.path.substr(0, route.path.find('{')));
  };
  const auto* route = std::ranges::find_if(kRoutes, is_of);
  if (route == std::end(kRoutes)) return "";
  return !route->is_get ? "POST" : route->path == "/machine" ? "GET" : "GET, HEAD";
}

OrderedJson openapi_description() {
  OrderedJson paths = OrderedJson::object();
  for (const Route& route : kRoutes)
    paths[std::string(route.path)][route.is_get ? "get" : "post"] = operation(route);
  return {{"openapi", "3.1.0"},
          {"info", {{"title", "dsrun serve"}, {"version", kVersion}}},
          {"paths", std::move(paths)},
          {"x-schemas", schema_description()}};
}

}  // namespace dspack::runtime
