#include "runtime/serve/text_logprobs.h"

#include <fmt/format.h>

#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

/// A token's bytes as text; different bytes give different texts.
std::string token_name(std::string_view bytes) {
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char c : bytes)
    name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

}  // namespace

OrderedJson text_logprobs(std::span<const TokenLikelihood> tokens) {
  OrderedJson names = OrderedJson::array();
  OrderedJson values = OrderedJson::array();
  OrderedJson likeliest = OrderedJson::array();
  OrderedJson offsets = OrderedJson::array();
  for (const TokenLikelihood& token : tokens) {
    names.push_back(token_name(token.text));
    offsets.push_back(token.offset);
    if (!token.is_known) {
      values.push_back(nullptr);
      likeliest.push_back(nullptr);
      continue;
    }
    values.push_back(token.logprob);
    OrderedJson others = OrderedJson::object();
    for (const auto& [text, logprob] : token.likeliest)
      others.emplace(token_name(text), logprob);
    others.emplace(names.back().get_ref<const std::string&>(), token.logprob);
    likeliest.push_back(std::move(others));
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(likeliest)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace dspack::runtime
