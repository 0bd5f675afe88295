#include "runtime/serve/http_message.h"

#include <algorithm>
#include <utility>

namespace dspack::runtime {

HttpRequest request_of(boost::beast::http::request<boost::beast::http::string_body> message) {
  HttpRequest request{
      .method = std::string(message.method_string()), .path = {}, .query = {}, .body = {}, .headers = {}, .client = {}};
  const std::string_view target(message.target().data(), message.target().size());
  request.path = std::string(target.substr(0, target.find('?')));
  if (request.path.size() < target.size()) request.query = std::string(target.substr(request.path.size() + 1));
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::ranges::transform(name, name.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  request.body = std::move(message.body());
  return request;
}

std::string_view HttpRequest::header(std::string_view name) const {
  const auto found = std::ranges::find(headers, name, [](const auto& each) { return std::string_view(each.first); });
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

}  // namespace dspack::runtime
