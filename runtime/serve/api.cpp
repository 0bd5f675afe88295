#include "runtime/serve/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <new>
#include <string_view>
#include <tuple>

#include "dspack_version.h"
#include "format/base/foreign_text.h"
#include "format/html_page.h"
#include "runtime/serve/field_table.h"
#include "runtime/serve/host_address.h"
#include "runtime/serve/request_fields.h"
#include "runtime/text/tool_syntax.h"

namespace dspack::runtime {
namespace {

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

constexpr std::chrono::seconds kPingInterval{1};  // between checks for clients that need a ping
// Text that is returned in two JSON fields: both copies, and six bytes for a control character.
constexpr uint64_t kToldTwice = 16;
// Memory of an answer besides its prompt and its tools.
constexpr uint64_t kAnswerBytes = 16U << 10U;
// /health reports a failed pass for this long, unless a pass succeeds: clients that send requests only to healthy
// servers retry after it.
constexpr std::chrono::seconds kUnhealthyTime{60};
constexpr size_t kMaxSaid = 256;  // remarks logged during a server's life
constexpr std::string_view kModelPath = "/v1/models/";

bool is_health(std::string_view path) {
  return path == "/health" || path == "/v1/health";
}

/// The error for an unknown path, or for a method that the path does not have.
ApiError no_answer(const HttpRequest& request) {
  const std::string_view methods = allowed_methods(request.path);
  if (methods.empty() || methods.find(request.method) != std::string_view::npos) {
    return {.status = 404, .type = "not_found_error", .message = fmt::format("there is no {}", quote(request.path))};
  }
  return {.status = 405,
          .type = "invalid_request_error",
          .message = fmt::format("{} is answered to {} alone", quote(request.path), methods),
          .allow = std::string(methods)};
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

/// Constant-time comparison.
bool are_equal(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0U : 1U;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? '\0' : b[i % b.size()]);
  return difference == 0;
}

Answering::Marks marks_of(const TextModel& text, bool with_tools) {
  const auto& chat = text.chat_template(with_tools);
  const auto syntax = chat ? ToolSyntax::of(*chat) : Result<ToolSyntax>(chat.error());
  return {.family = syntax ? std::optional(syntax->family()) : std::nullopt,
          .end_think = text.end_of_reasoning(with_tools)};
}

/// Whether a browser reports that a page of another origin caused the request, even without an Origin: images, scripts,
/// frames. Following a link to the page does not count.
bool is_from_elsewhere(const HttpRequest& request) {
  const std::string_view site = request.header("sec-fetch-site");
  if (site != "cross-site" && site != "same-site") return false;
  return request.path != "/" || request.header("sec-fetch-dest") != "document";
}

/// Memory that an answer keeps until it ends: the tokens of prompt and answer, and the tools.
uint64_t answer_bytes(const AnswerRequest& request, const Prompt& prompt) {
  constexpr uint64_t kLikelihoodBytes = 100;
  const auto* conversation = std::get_if<Conversation>(&request.prompt);
  const bool has_tools = conversation != nullptr && !conversation->tools.is_null();
  const uint64_t likelihoods = request.scores_prompt() ? prompt.tokens.size() * (1 + *request.top_logprobs) : 0;
  return kAnswerBytes + prompt.tokens.size() * 2 * sizeof(uint32_t) + likelihoods * kLikelihoodBytes +
         (has_tools ? 2 * reading_bytes(json_text(conversation->tools)) : 0) +  // to read calls, and to check them
         (is_json(request.form) ? reading_bytes(json_text(request.form.schema)) : 0);
}

}  // namespace

WebPage make_web_page() {
  // No policy in the frame itself: frame-ancestors only works in a header.
  return {.html = format::html_page({.frame = kWebPageFrame, .style = kWebPageStyle, .script = kWebPageScript}, {}),
          .policy = fmt::format("default-src 'none'; connect-src 'self'; img-src data:; style-src '{}'; script-src "
                                "'{}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                                format::policy_digest(kWebPageStyle), format::policy_digest(kWebPageScript))};
}

HttpReply::Headers cross_origin_headers(const std::string& origin) {
  if (origin.empty()) return {};
  return {{"Access-Control-Allow-Origin", origin},
          {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, Anthropic-Version, Anthropic-Beta"},
          {"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
          {"Vary", "Origin"}};
}

Api::Api(const TextModel& text, Scheduler& scheduler, MachineWatch& machine, ApiOptions options, Answering::Log log)
    : text_(text),
      prompts_(text,
               {.context = options.context, .template_arguments = options.template_arguments, .clock = options.clock}),
      marks_{marks_of(text, false), marks_of(text, true)},
      scheduler_(scheduler),
      machine_(machine),
      options_(std::move(options)),
      memory_(options_.request_bytes),
      log_(std::move(log)),
      pinging_([this](const std::stop_token& stop) { ping(stop); }),
      constraints_(ConstraintCompiler::make(text.tokenizer(), options_.vocab, options_.end_tokens)) {}

bool Api::is_known_host(std::string_view host) const {
  const auto named = host_of(host);
  if (named && (means_this_machine(*named) || is_same_host(*named, options_.host))) return true;
  // With a key, a foreign page that reached this server by DNS rebinding can do nothing without the key.
  return !options_.api_key.empty();
}

bool Api::is_allowed(const HttpRequest& request, HttpReply& reply, Dialect dialect) const {
  const auto refuse = [&](unsigned status, std::string type, std::string message) {
    const ApiError error{status, std::move(type), std::move(message)};
    dialect == Dialect::anthropic ? send_anthropic_error(reply, error) : send_openai_error(reply, error);
    return false;
  };
  if (!is_known_host(request.header("host"))) {
    return refuse(403, "permission_error", "this server answers only to the names localhost and 127.0.0.1");
  }
  // Browsers send the origin of the page: only this server's own pages may send requests.
  if (const std::string_view origin = request.header("origin"); !origin.empty()) {
    const size_t scheme = origin.find("://");
    if (options_.allow_origin == "*" || origin == options_.allow_origin) {
      // allowed by name
    } else if (scheme == std::string_view::npos || origin.substr(scheme + 3) != request.header("host")) {
      return refuse(403, "permission_error", "pages of other servers may not ask this one");
    }
  } else if (is_from_elsewhere(request) && options_.allow_origin != "*") {
    return refuse(403, "permission_error", "pages of other servers may not ask this one");
  }
  if (options_.api_key.empty() || is_health(request.path) || request.path == "/") return true;
  std::string_view key = request.header("authorization");
  if (key.starts_with("Bearer ")) key.remove_prefix(7);
  if (key.empty()) key = request.header("x-api-key");
  if (are_equal(key, options_.api_key)) return true;
  return refuse(401, "authentication_error", "the API key is missing or wrong");
}

/// An exception ends only its own request.
void Api::handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const Dialect dialect = request.path.starts_with("/v1/messages") ? Dialect::anthropic : Dialect::openai;
  try {
    route(request, reply);
  } catch (const std::bad_alloc&) {
    fail(*reply, dialect, Error{ErrorKind::conflict, "there is not enough memory for this request now"});
  } catch (const std::exception& exception) {
    log_({ErrorKind::io, fmt::format("a request to {} has failed: {}", quote(request.path), exception.what())});
    fail(*reply, dialect, Error{ErrorKind::io, exception.what()});
  }
}

void Api::route(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const Dialect dialect = request.path.starts_with("/v1/messages") ? Dialect::anthropic : Dialect::openai;
  // CORS preflight: browsers send it without the key.
  if (request.method == "OPTIONS" && !options_.allow_origin.empty()) return reply->send(200, "text/plain", "");
  if (!is_allowed(request, *reply, dialect)) return;
  if (request.method == "GET" && request.path == "/machine") {
    const auto watched = machine_.watch(reply);
    return watched ? void() : send_openai_error(*reply, api_error(watched.error()));
  }
  if (request.method == "GET" || request.method == "HEAD") return get(request, *reply);
  if (request.method != "POST") return fail(*reply, dialect, no_answer(request));
  const std::string& path = request.path;
  const std::string& body = request.body;
  using Parse = Result<AnswerRequest> (*)(std::string_view, const SamplerOptions&);
  static constexpr std::array<std::tuple<std::string_view, Parse, Dialect>, 4> kAnswers = {{
      {"/v1/chat/completions", &parse_chat_request, Dialect::openai},
      {"/v1/completions", &parse_completion_request, Dialect::openai},
      {"/v1/responses", &parse_responses_request, Dialect::responses},
      {"/v1/messages", &parse_messages_request, Dialect::anthropic},
  }};
  using Function = Result<OrderedJson> (Api::*)(std::string_view, const PromptMaker::Asker&) const;
  static constexpr std::array<std::pair<std::string_view, Function>, 4> kFunctions = {{
      {"/tokenize", &Api::tokenize},
      {"/detokenize", &Api::detokenize},
      {"/apply-template", &Api::apply_template},
      {"/v1/messages/count_tokens", &Api::count_tokens},
  }};
  const auto memory = std::make_shared<RequestMemory::Share>(memory_);
  const auto enough = memory->need(reading_bytes(body));
  if (!enough) return fail(*reply, dialect, enough.error());
  for (const auto& [name, parse, form] : kAnswers) {
    if (path != name) continue;
    auto parsed = parse(body, options_.sampling);
    if (!parsed) return fail(*reply, dialect, parsed.error());
    return answer(*std::move(parsed), {.reply = reply, .dialect = form, .client = request.client, .memory = memory});
  }
  for (const auto& [name, function] : kFunctions) {
    if (path != name) continue;
    const auto result = (this->*function)(body, {.memory = *memory, .gone = reply->gone()});
    if (!result) return fail(*reply, dialect, result.error());
    return reply->send(200, "application/json", json_text(*result));
  }
  fail(*reply, dialect, no_answer(request));
}

void Api::send_health(HttpReply& reply) const {
  const auto failed_at = scheduler_.counts().failed_at;
  if (!failed_at || std::chrono::steady_clock::now() - *failed_at > kUnhealthyTime)
    return reply.send(200, "application/json", json_text({{"status", "ok"}}));
  reply.send(503, "application/json",
             json_text({{"status", "error"},
                        {"message", "the last answer could not be computed; the server's log says why"}}));
}

void Api::get(const HttpRequest& request, HttpReply& reply) {
  const OrderedJson model = {{"id", options_.model},
                             {"object", "model"},
                             {"created", 0},
                             {"owned_by", "dspack"},
                             {"context_length", options_.context}};
  if (request.path == "/") {
    return reply.send(200, "text/html; charset=utf-8", page_.html,
                      {{"Content-Security-Policy", page_.policy},
                       {"X-Content-Type-Options", "nosniff"},
                       {"Referrer-Policy", "no-referrer"},
                       {"Cache-Control", "no-cache"}});
  }
  if (is_health(request.path)) return send_health(reply);
  if (request.path == "/v1/models") {
    return reply.send(200, "application/json", json_text({{"object", "list"}, {"data", OrderedJson::array({model})}}));
  }
  if (request.path == "/version") return reply.send(200, "application/json", json_text({{"version", kVersion}}));
  if (request.path == "/openapi.json") return reply.send(200, "application/json", json_text(openapi_description()));
  // Some clients escape the slash in a name, others do not.
  if (request.path.starts_with(kModelPath) &&
      (request.path.substr(kModelPath.size()) == options_.model ||
       percent_decoded(request.path.substr(kModelPath.size())) == options_.model))
    return reply.send(200, "application/json", json_text(model));
  if (request.path == "/metrics")
    return reply.send(200, "text/plain; version=0.0.4", metrics_text(scheduler_.counts(), memory_.taken()));
  if (request.path == "/props") {
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
    return reply.send(200, "application/json", json_text(props));
  }
  const ApiError error = no_answer(request);
  request.path.starts_with("/v1/messages") ? send_anthropic_error(reply, error) : send_openai_error(reply, error);
}

void Api::fail(HttpReply& reply, Dialect dialect, const Error& error) {
  fail(reply, dialect, api_error(error));
}

void Api::fail(HttpReply& reply, Dialect dialect, const ApiError& error) {
  dialect == Dialect::anthropic ? send_anthropic_error(reply, error) : send_openai_error(reply, error);
}

void Api::say(const std::vector<std::string>& remarks) {
  for (const std::string& line : remarks) {
    {
      const std::lock_guard lock(mutex_);
      if (said_.size() >= kMaxSaid || !said_.insert(line).second) continue;
    }
    log_({ErrorKind::unsupported, line});
  }
}

void Api::answer(AnswerRequest request, const Call& call) {
  const auto refuse = [&call](const auto& error) { return fail(*call.reply, call.dialect, error); };
  say(request.remarks);
  const auto prompts = prompts_.prompts_of(request, {.memory = *call.memory, .gone = call.reply->gone()});
  if (!prompts) return refuse(prompts.error());
  for (const Prompt& each : *prompts) {
    const uint64_t count = each.at_least.value_or(each.tokens.size());
    if (count > options_.context) return refuse(context_exceeded(count, options_.context, !each.at_least));
  }
  const auto* conversation = std::get_if<Conversation>(&request.prompt);
  const bool has_tools = conversation != nullptr && !conversation->tools.is_null();
  const auto form =
      compose_form(request.form, prompts->front().reasoning, text_.chat_template(has_tools), text_.tokenizer());
  if (!form) return refuse(form.error());
  // Optional calls need no constraint: without xgrammar they are free.
  const bool can_be_free = request.form.kind == AnswerForm::Kind::strict_calls && !constraints_;
  if (form->is_null() || can_be_free) {
    auto answers = make_answers(std::move(request), *prompts, call);
    return answers ? begin(*std::move(answers), nullptr) : refuse(answers.error());
  }
  if (request.ignores_end_tokens || request.min_tokens > 0) {
    return refuse(
        Error{ErrorKind::unsupported,
              "\"min_tokens\" or \"ignore_eos\" beside an answer that is held to a form, which says where it ends"});
  }
  if (conversation != nullptr && conversation->continue_final_message &&
      request.form.kind != AnswerForm::Kind::strict_calls) {
    return refuse(Error{ErrorKind::unsupported,
                        "a last message of the assistant beside an answer that is held to a form: "
                        "what it begins with is not looked at"});
  }
  if (!constraints_) return refuse(constraints_.error());
  // Compiling a form may take seconds; the answers are made first, so that clients of streams are pinged meanwhile.
  auto made = make_answers(std::move(request), *prompts, call);
  if (!made) return refuse(made.error());
  const auto answers = std::make_shared<Answers>(*std::move(made));
  const auto go_on = [this, answers,
                      listeners = answers->listeners](const Result<std::unique_ptr<TokenConstraint>>& constraint) {
    const auto refuse_all = [&listeners](const Error& error) {
      for (const auto& each : listeners)
        each->refuse(error);
    };
    if (!constraint) return refuse_all(constraint.error());
    try {
      begin(std::move(*answers), constraint->get());
    } catch (const std::bad_alloc&) {
      refuse_all({ErrorKind::conflict, "there is not enough memory for this answer now"});
    }
  };
  (*constraints_)->compile(json_text(*form), client_of(call.client), go_on, call.reply->gone());
}

Result<Api::Answers> Api::make_answers(AnswerRequest request, std::span<const Prompt> prompts, const Call& call) {
  std::vector<uint32_t> end_tokens = request.stop_tokens;
  if (!request.ignores_end_tokens) std::ranges::copy(options_.end_tokens, std::back_inserter(end_tokens));
  request.sampling.min_tokens = request.min_tokens;
  request.sampling.end_tokens = end_tokens;
  const std::string model = request.model.empty() ? options_.model : request.model;
  const bool converses = std::holds_alternative<Conversation>(request.prompt);
  AnswerWriters writers;
  if (call.dialect == Dialect::openai) {
    writers = converses ? make_chat_writers(call.reply, request, model) : make_text_writers(call.reply, request, model);
  } else {
    writers.push_back(
        call.dialect == Dialect::anthropic
            ? make_messages_writer(call.reply, request, model, static_cast<uint32_t>(prompts.front().tokens.size()))
            : make_responses_writer(call.reply, request, model));
  }
  const auto* conversation = std::get_if<Conversation>(&request.prompt);
  const Answering::Marks& known = marks_[conversation != nullptr && !conversation->tools.is_null() ? 1 : 0];
  uint64_t kept_bytes = 0;
  const uint64_t first_seed = request.sampling.seed;
  Answers answers;
  for (size_t index = 0; index < writers.size(); ++index) {
    const Prompt& prompt = prompts[index / request.choices];
    const auto count = static_cast<uint32_t>(prompt.tokens.size());
    request.sampling.seed = first_seed + index % request.choices;  // each prompt's answers as if it were sent alone
    TRY_ASSIGN(Sampler sampler, Sampler::make(request.sampling));
    const auto answering = std::make_shared<Answering>(text_.tokenizer(), request, count, prompt.form, known,
                                                       std::move(writers[index]), log_);
    if (request.echoes && !request.scores_prompt()) answering->echo(prompt.tokens);
    answering->keep(call.memory);
    kept_bytes += answer_bytes(request, prompt);
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(answering);
    }
    answers.listeners.push_back(answering);
    answers.generations.push_back({.prompt = prompt.tokens,
                                   .max_tokens = request.max_tokens.value_or(UINT32_MAX),
                                   .end_tokens = end_tokens,
                                   .sampler = std::move(sampler),
                                   .listener = answering,
                                   .gone = call.reply->gone(),
                                   .scores_prompt = request.scores_prompt(),
                                   .client = client_of(call.client)});
  }
  TRY(call.memory->need(kept_bytes));  // releases the memory of reading the request
  return answers;
}

void Api::begin(Answers answers, const TokenConstraint* constraint) {
  if (constraint != nullptr) {
    for (Generation& each : answers.generations)
      each.sampler.constrain(constraint->restart());
  }
  const auto submitted = scheduler_.submit(std::move(answers.generations));
  if (submitted) return;
  for (const auto& each : answers.listeners)
    each->refuse(submitted.error());
}

Result<OrderedJson> Api::tokenize(std::string_view body, const PromptMaker::Asker& asker) const {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  TRY_ASSIGN(const auto content, fields.text("content"));
  TRY_ASSIGN(const auto prompt, fields.text("prompt"));
  if (!content && !prompt) return invalid("\"content\" (or \"prompt\") is missing");
  TRY_ASSIGN(const auto begins, fields.flag("add_special"));
  TRY_ASSIGN(const std::vector<uint32_t> tokens,
             prompts_.encode(content ? *content : *prompt, begins.value_or(prompt.has_value()), asker));
  return OrderedJson{{"tokens", tokens}, {"count", tokens.size()}};
}

Result<OrderedJson> Api::detokenize(std::string_view body, const PromptMaker::Asker& asker) const {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const OrderedJson* tokens = JsonFields(root).find("tokens");
  if (tokens == nullptr || !tokens->is_array()) return invalid("\"tokens\" is not a list");
  std::vector<uint32_t> ids;
  uint64_t bytes = 0;
  for (const OrderedJson& id : *tokens) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= options_.vocab) return invalid("\"tokens\" has no token id");
    ids.push_back(id.get<uint32_t>());
    bytes += text_.tokenizer().token_bytes(ids.back()).size();
  }
  TRY(asker.memory.need(asker.memory.bytes() + bytes * kToldTwice));
  const std::string text = text_.tokenizer().decode(ids, SpecialOutput::keep);
  return OrderedJson{{"content", text}, {"prompt", text}};
}

Result<OrderedJson> Api::apply_template(std::string_view body, const PromptMaker::Asker& asker) const {
  TRY_ASSIGN(const AnswerRequest request, parse_chat_request(body, options_.sampling));
  TRY_ASSIGN(std::string text, prompts_.render(request, asker));
  TRY(asker.memory.need(asker.memory.bytes() + text.size() * kToldTwice));
  return OrderedJson{{"prompt", std::move(text)}};
}

Result<OrderedJson> Api::count_tokens(std::string_view body, const PromptMaker::Asker& asker) const {
  TRY_ASSIGN(const AnswerRequest request, parse_messages_request(body, options_.sampling));
  TRY_ASSIGN(const Prompt prompt, prompts_.prompt_of(request, asker));
  if (prompt.at_least) return invalid(context_exceeded(*prompt.at_least, options_.context, false).message);
  return OrderedJson{{"input_tokens", prompt.tokens.size()}};
}

void Api::ping(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    changed_.wait_for(lock, stop, kPingInterval, [] { return false; });
    waiting_.remove_if([](const std::weak_ptr<Answering>& each) { return each.expired(); });
    for (const auto& each : waiting_) {
      const auto answering = each.lock();
      if (!answering) continue;
      try {
        answering->ping(Answering::Clock::now(), scheduler_.layers_begun(), options_.layers);
      } catch (const std::bad_alloc&) {
        // Out of memory: retried at the next ping.
      }
    }
  }
}

}  // namespace dspack::runtime
