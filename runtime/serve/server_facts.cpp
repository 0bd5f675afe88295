#include "runtime/serve/server_facts.h"

#include <fmt/format.h>

#include <chrono>

#include "dspack_version.h"
#include "format/html_page.h"
#include "runtime/serve/access.h"
#include "runtime/serve/field_table.h"
#include "runtime/text/json.h"

namespace dspack::runtime {
namespace {

// /health reports a failed pass for this long, unless a pass succeeds: clients that send requests only to healthy
// servers retry after it.
constexpr std::chrono::seconds kUnhealthyTime{60};
constexpr std::string_view kModelPath = "/v1/models/";

/// `request_bytes`: memory now held by requests (request_memory.h).
std::string metrics_text(const SchedulerCounts& counts, uint64_t request_bytes) {
  std::string text;
  const auto line = [&text](std::string_view name, std::string_view type, std::string_view help, auto value) {
    text += fmt::format("# HELP dspack_{0} {1}\n# TYPE dspack_{0} {2}\ndspack_{0} {3}\n", name, help, type, value);
  };
  line("requests_total", "counter", "Generations that got a place", counts.generations);
  line("requests_cancelled_total", "counter", "Generations whose client left", counts.cancelled);
  line("requests_failed_total", "counter", "Generations that ended in an error", counts.failed);
  line("requests_refused_total", "counter", "Requests refused because too many waited", counts.refused);
  line("prompt_tokens_total", "counter", "Tokens of prompts that were computed", counts.prompt_tokens);
  line("prompt_tokens_cached_total", "counter", "Tokens of prompts found in a cache", counts.kept_tokens);
  line("prompt_tokens_shared_total", "counter", "Of these, tokens that another answer's cache held",
       counts.copied_tokens);
  line("answer_tokens_total", "counter", "Tokens of answers", counts.answer_tokens);
  line("drafted_tokens_total", "counter", "Tokens that the MTP module drafted", counts.drafted_tokens);
  line("accepted_drafts_total", "counter", "Of these, tokens that the model confirmed", counts.accepted_drafts);
  line("passes_total", "counter", "Passes through the model", counts.passes);
  line("pass_rows_total", "counter", "Tokens in all passes", counts.rows);
  line("pass_seconds_total", "counter", "Time in passes", counts.seconds);
  line("requests_running", "gauge", "Generations that have a place", counts.busy);
  line("requests_waiting", "gauge", "Generations that wait for a place", counts.waiting);
  line("request_memory_bytes", "gauge", "Memory that requests have said they may need", request_bytes);
  if (!counts.cache) return text;
  const PrefixCacheCounts& cache = *counts.cache;
  line("prefix_cache_memory_bytes", "gauge", "KV rows that the prefix cache has in memory", cache.memory_bytes);
  line("prefix_cache_memory_blocks", "gauge", "Their blocks", cache.memory_blocks);
  line("prefix_cache_disk_bytes", "gauge", "Files of the prefix cache", cache.disk_bytes);
  line("prefix_cache_disk_blocks", "gauge", "Those of this model", cache.disk_blocks);
  line("prefix_cache_memory_tokens_total", "counter", "Tokens of prompts taken from it in memory", cache.memory_tokens);
  line("prefix_cache_disk_tokens_total", "counter", "Tokens of prompts taken from it on disk", cache.disk_tokens);
  return text;
}

/// "org%2Fname" as "org/name"; invalid escapes are kept.
std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    plain += is_escape ? static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])) : text[i];
    if (is_escape) i += 2;
  }
  return plain;
}

void send_json(HttpReply& reply, const OrderedJson& value) {
  reply.send(200, "application/json", json_text(value));
}

}  // namespace

ServerFacts::WebPage ServerFacts::make_web_page() {
  // No policy in the frame itself: frame-ancestors only works in a header.
  return {.html = format::html_page({.frame = kWebPageFrame, .style = kWebPageStyle, .script = kWebPageScript}, {}),
          .policy = fmt::format("default-src 'none'; connect-src 'self'; img-src data:; style-src '{}'; script-src "
                                "'{}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                                format::policy_digest(kWebPageStyle), format::policy_digest(kWebPageScript))};
}

void ServerFacts::send_health(HttpReply& reply) const {
  const auto failed_at = scheduler_.counts().failed_at;
  if (!failed_at || std::chrono::steady_clock::now() - *failed_at > kUnhealthyTime)
    return send_json(reply, {{"status", "ok"}});
  reply.send(503, "application/json",
             json_text({{"status", "error"},
                        {"message", "the last answer could not be computed; the server's log says why"}}));
}

OrderedJson ServerFacts::model() const {
  return {{"id", options_.model},
          {"object", "model"},
          {"created", 0},
          {"owned_by", "dspack"},
          {"context_length", options_.context}};
}

OrderedJson ServerFacts::settings() const {
  OrderedJson props = {{"model", options_.model},
                       {"context", options_.context},
                       {"parallel", scheduler_.places()},
                       {"sampling",
                        {{"temperature", options_.sampling.temperature},
                         {"top_p", options_.sampling.top_p},
                         {"top_k", options_.sampling.top_k},
                         {"min_p", options_.sampling.min_p}}}};
  if (const auto cache = scheduler_.counts().cache) {
    props["prefix_cache"] = {{"memory_limit_bytes", options_.cache_memory_bytes},
                             {"memory_bytes", cache->memory_bytes},
                             {"memory_blocks", cache->memory_blocks},
                             {"disk_bytes", cache->disk_bytes},
                             {"disk_blocks", cache->disk_blocks}};
  }
  return props;
}

/// Some clients escape the slash in a name, others do not.
bool ServerFacts::is_this_model(std::string_view path) const {
  if (!path.starts_with(kModelPath)) return false;
  path.remove_prefix(kModelPath.size());
  return path == options_.model || percent_decoded(path) == options_.model;
}

bool ServerFacts::send(const HttpRequest& request, HttpReply& reply) const {
  const std::string_view path = request.path;
  if (path == "/") {
    reply.send(200, "text/html; charset=utf-8", page_.html,
               {{"Content-Security-Policy", page_.policy},
                {"X-Content-Type-Options", "nosniff"},
                {"Referrer-Policy", "no-referrer"},
                {"Cache-Control", "no-cache"}});
  } else if (is_health(path)) {
    send_health(reply);
  } else if (path == "/v1/models") {
    send_json(reply, {{"object", "list"}, {"data", OrderedJson::array({model()})}});
  } else if (path == "/version") {
    send_json(reply, {{"version", kVersion}});
  } else if (path == "/openapi.json") {
    send_json(reply, openapi_description());
  } else if (is_this_model(path)) {
    send_json(reply, model());
  } else if (path == "/metrics") {
    reply.send(200, "text/plain; version=0.0.4", metrics_text(scheduler_.counts(), memory_.taken()));
  } else if (path == "/props") {
    send_json(reply, settings());
  } else {
    return false;
  }
  return true;
}

}  // namespace dspack::runtime
