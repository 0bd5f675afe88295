#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "runtime/serve/answer_writer.h"
#include "runtime/text/json.h"

namespace dspack::runtime {
namespace {

/// In descending order of logits; equal ones in order of id.
std::vector<uint32_t> highest_tokens(std::span<const float> logits, uint32_t most) {
  std::vector<uint32_t> best;
  if (most == 0) return best;
  const auto logit = [&](uint32_t token) { return logits[token]; };
  for (uint32_t token = 0; token < logits.size(); ++token) {
    if (best.size() == most) {
      if (logits[token] <= logits[best.back()]) continue;
      best.pop_back();
    }
    best.insert(std::ranges::upper_bound(best, logits[token], std::greater{}, logit), token);
  }
  return best;
}

}  // namespace

TokenLikelihood likelihood_of(const Tokenizer& tokenizer, uint32_t id, std::span<const float> logits, uint32_t most) {
  const float highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits)
    sum += std::exp(static_cast<double>(logit) - highest);
  const double of_all = highest + std::log(sum);
  const auto logprob = [&](uint32_t token) { return static_cast<double>(logits[token]) - of_all; };
  TokenLikelihood told{.text = std::string(tokenizer.token_bytes(id)), .logprob = logprob(id)};
  for (const uint32_t token : highest_tokens(logits, most))
    told.likeliest.push_back({.text = std::string(tokenizer.token_bytes(token)), .logprob = logprob(token)});
  return told;
}

ApiError api_error(const Error& error) {
  switch (error.kind) {
    case ErrorKind::invalid:
    case ErrorKind::unsupported: return {400, "invalid_request_error", error.message};
    case ErrorKind::budget: return {429, "rate_limit_error", error.message};
    case ErrorKind::conflict:
    case ErrorKind::cancelled: return {503, "overloaded_error", error.message};
    case ErrorKind::not_found:  // a missing tensor; no request can name one
    case ErrorKind::corrupt:
    case ErrorKind::io:
    case ErrorKind::network: break;
  }
  return {500, "api_error", "the answer could not be computed; the server's log says why"};
}

ApiError context_exceeded(uint64_t prompt_tokens, uint64_t context, bool is_exact) {
  return {.status = 400,
          .type = "invalid_request_error",
          .message = fmt::format("prompt is too long: {} tokens > {} maximum{}; shorten it, or allow more with --ctx",
                                 prompt_tokens, context, is_exact ? "" : " at least, they were not counted further"),
          .code = "context_length_exceeded"};
}

std::string fresh_id(std::string_view prefix) {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, random(), random(), random());
}

std::string progress_comment(const AnswerProgress& progress) {
  if (progress.answer_tokens > 0) return fmt::format(": answering, {} tokens so far\n\n", progress.answer_tokens);
  const std::string layer = progress.layer == 0 ? "" : fmt::format(", layer {} of {}", progress.layer, progress.layers);
  return fmt::format(": reading the prompt, {} of {} tokens{}\n\n", progress.read, progress.tokens, layer);
}

namespace {

HttpReply::Headers headers_for(const ApiError& error) {
  if (!error.allow.empty()) return {{"Allow", error.allow}};
  if (error.status == 429 || error.status == 503) return {{"Retry-After", "10"}};
  return {};
}

void send_openai_error(HttpReply& reply, const ApiError& error) {
  const OrderedJson code = error.code.empty() ? OrderedJson() : OrderedJson(error.code);
  const OrderedJson body = {
      {"error", {{"message", error.message}, {"type", error.type}, {"param", nullptr}, {"code", code}}}};
  reply.send(error.status, "application/json", json_text(body), headers_for(error));
}

void send_anthropic_error(HttpReply& reply, const ApiError& error) {
  const OrderedJson body = {{"type", "error"}, {"error", {{"type", error.type}, {"message", error.message}}}};
  reply.send(error.status, "application/json", json_text(body), headers_for(error));
}

}  // namespace

Dialect dialect_of(std::string_view path) {
  return path.starts_with("/v1/messages")    ? Dialect::anthropic
         : path.starts_with("/v1/responses") ? Dialect::responses
                                             : Dialect::openai;
}

void send_error(HttpReply& reply, Dialect dialect, const ApiError& error) {
  switch (dialect) {
    case Dialect::openai:
    case Dialect::responses: return send_openai_error(reply, error);
    case Dialect::anthropic: return send_anthropic_error(reply, error);
  }
}

}  // namespace dspack::runtime
