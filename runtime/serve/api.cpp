#include "runtime/serve/api.h"

#include <fmt/format.h>

#include <array>

#include "format/base/foreign_text.h"
#include "runtime/serve/request_fields.h"

namespace dspack::runtime {
namespace {

constexpr std::chrono::seconds kPingInterval{5};

/// In a time that does not depend on where they differ.
bool are_equal(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0U : 1U;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? '\0' : b[i % b.size()]);
  return difference == 0;
}

/// "example.org:8080" and "[::1]:8080" without the port.
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

}  // namespace

HttpReply::Headers cross_origin_headers(const std::string& origin) {
  if (origin.empty()) return {};
  return {{"Access-Control-Allow-Origin", origin},
          {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, Anthropic-Version, Anthropic-Beta"},
          {"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
          {"Vary", "Origin"}};
}

Api::Api(const TextModel& text, Scheduler& scheduler, MachineWatch& machine, ApiOptions options, Answering::Log log)
    : text_(text),
      scheduler_(scheduler),
      machine_(machine),
      options_(std::move(options)),
      log_(std::move(log)),
      pinging_([this](const std::stop_token& stop) { ping(stop); }),
      constraints_(ConstraintCompiler::make(text.tokenizer(), options_.vocab, options_.end_tokens)) {}

bool Api::is_known_host(std::string_view host) const {
  host = without_port(host);
  for (const std::string_view known : {"localhost", "127.0.0.1", "[::1]"})
    if (host == known) return true;
  // Where a key is needed, a page of a stranger that was sent here by a false name can do nothing without it.
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
  // A browser names the page that asks: only this server's own may.
  if (const std::string_view origin = request.header("origin"); !origin.empty()) {
    const size_t scheme = origin.find("://");
    if (options_.allow_origin == "*" || origin == options_.allow_origin) {
      // allowed by name
    } else if (scheme == std::string_view::npos || origin.substr(scheme + 3) != request.header("host")) {
      return refuse(403, "permission_error", "pages of other servers may not ask this one");
    }
  }
  if (options_.api_key.empty() || request.path == "/health" || request.path == "/") return true;
  std::string_view key = request.header("authorization");
  if (key.starts_with("Bearer ")) key.remove_prefix(7);
  if (key.empty()) key = request.header("x-api-key");
  if (are_equal(key, options_.api_key)) return true;
  return refuse(401, "authentication_error", "the API key is missing or wrong");
}

void Api::handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const Dialect dialect = request.path.starts_with("/v1/messages") ? Dialect::anthropic : Dialect::openai;
  // A browser asks before it sends a key.
  if (request.method == "OPTIONS" && !options_.allow_origin.empty()) return reply->send(200, "text/plain", "");
  if (!is_allowed(request, *reply, dialect)) return;
  if (request.method == "GET" && request.path == "/machine") {
    const auto watched = machine_.watch(reply);
    return watched ? void() : send_openai_error(*reply, api_error(watched.error()));
  }
  if (request.method == "GET" || request.method == "HEAD") return get(request, *reply);
  const auto fail = [&](const Error& error) {
    dialect == Dialect::anthropic ? send_anthropic_error(*reply, api_error(error))
                                  : send_openai_error(*reply, api_error(error));
  };
  if (request.method != "POST") return fail(invalid("only GET and POST are answered"));
  const std::string& path = request.path;
  const std::string& body = request.body;
  if (path == "/v1/chat/completions") return answer(parse_chat_request(body, options_.sampling), reply, dialect);
  if (path == "/v1/completions") return answer(parse_completion_request(body, options_.sampling), reply, dialect);
  if (path == "/v1/responses") {
    return answer(parse_responses_request(body, options_.sampling), reply, Dialect::responses);
  }
  if (path == "/v1/messages") return answer(parse_messages_request(body, options_.sampling), reply, dialect);
  using Function = Result<OrderedJson> (Api::*)(std::string_view) const;
  static constexpr std::array<std::pair<std::string_view, Function>, 4> kFunctions = {{
      {"/tokenize", &Api::tokenize},
      {"/detokenize", &Api::detokenize},
      {"/apply-template", &Api::apply_template},
      {"/v1/messages/count_tokens", &Api::count_tokens},
  }};
  for (const auto& [name, function] : kFunctions) {
    if (path != name) continue;
    const auto result = (this->*function)(body);
    if (!result) return fail(result.error());
    return reply->send(200, "application/json", json_text(*result));
  }
  fail({ErrorKind::not_found, fmt::format("there is no {}", quote(path))});
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
  if (request.path == "/health") return reply.send(200, "application/json", json_text({{"status", "ok"}}));
  if (request.path == "/v1/models") {
    return reply.send(200, "application/json", json_text({{"object", "list"}, {"data", OrderedJson::array({model})}}));
  }
  if (request.path == "/v1/models/" + options_.model) return reply.send(200, "application/json", json_text(model));
  if (request.path == "/metrics") return reply.send(200, "text/plain; version=0.0.4", metrics());
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
  send_openai_error(reply, {404, "not_found_error", fmt::format("there is no {}", quote(request.path))});
}

Result<std::string> Api::prompt_text(const Conversation& conversation, const std::optional<bool>& thinking) const {
  OrderedJson arguments = options_.template_arguments;
  if (thinking) arguments.update(thinking_arguments(*thinking));
  for (const auto& [name, value] : conversation.arguments.items()) {
    if (is_given_to_templates(name))
      return invalid(fmt::format("\"chat_template_kwargs\" cannot hold {}", quote(name)));
    const bool is_thinking = thinking_arguments(true).contains(name) && value.is_boolean();
    arguments.update(is_thinking ? thinking_arguments(value.get<bool>()) : OrderedJson{{name, value}});
  }
  return text_.render_chat(conversation.messages, {.add_generation_prompt = true,
                                                   .tools = conversation.tools,
                                                   .arguments = std::move(arguments),
                                                   .now = options_.clock()});
}

Result<Api::Prompt> Api::prompt_of(const AnswerRequest& request) const {
  if (const auto* ids = std::get_if<std::vector<uint32_t>>(&request.prompt)) return Prompt{.tokens = *ids};
  if (const auto* text = std::get_if<std::string>(&request.prompt)) {
    TRY_ASSIGN(std::vector<uint32_t> tokens, text_.encode_raw(*text));
    return Prompt{.tokens = std::move(tokens)};
  }
  TRY_ASSIGN(const std::string text, prompt_text(std::get<Conversation>(request.prompt), request.thinking));
  TRY_ASSIGN(std::vector<uint32_t> tokens, text_.tokenizer().encode(text, SpecialTokens::parse));
  Prompt prompt{.tokens = std::move(tokens), .form = Answering::Form::conversation};
  const auto& chat = text_.chat_template();
  if (begins_reasoning(text)) {
    prompt.form = Answering::Form::conversation_in_thought;
    prompt.reasoning = Reasoning::begun;
  } else if (!text.ends_with("</think>") && !text.ends_with("</think>\n\n") && chat && chat->has_thinking_switch()) {
    prompt.reasoning = Reasoning::optional;  // the switch may leave it to the model
  }
  return prompt;
}

void Api::fail(HttpReply& reply, Dialect dialect, const Error& error) {
  dialect == Dialect::anthropic ? send_anthropic_error(reply, api_error(error))
                                : send_openai_error(reply, api_error(error));
}

void Api::answer(Result<AnswerRequest> request, const std::shared_ptr<HttpReply>& reply, Dialect dialect) {
  if (!request) return fail(*reply, dialect, request.error());
  auto prompt = prompt_of(*request);
  if (!prompt) return fail(*reply, dialect, prompt.error());
  const auto* conversation = std::get_if<Conversation>(&request->prompt);
  const bool has_tools = conversation != nullptr && !conversation->tools.is_null();
  const auto form = compose_form(request->form, prompt->reasoning, text_.chat_template(has_tools), text_.tokenizer());
  if (!form) return fail(*reply, dialect, form.error());
  // What the model may do by itself, it does without xgrammar as well.
  const bool can_be_free = request->form.kind == AnswerForm::Kind::strict_calls && !constraints_;
  if (form->is_null() || can_be_free) return begin(*request, *prompt, nullptr, reply, dialect);
  if (!constraints_) return fail(*reply, dialect, constraints_.error());
  (*constraints_)
      ->compile(
          json_text(*form),
          [this, request = *std::move(request), prompt = *std::move(prompt), reply,
           dialect](Result<std::unique_ptr<TokenConstraint>> constraint) {
            if (!constraint) return fail(*reply, dialect, constraint.error());
            begin(request, prompt, constraint->get(), reply, dialect);
          },
          reply->gone());
}

void Api::begin(AnswerRequest request, const Prompt& prompt, const TokenConstraint* constraint,
                const std::shared_ptr<HttpReply>& reply, Dialect dialect) {
  auto sampler = Sampler::make(request.sampling);
  if (!sampler) return fail(*reply, dialect, sampler.error());
  const std::string model = request.model.empty() ? options_.model : request.model;
  const bool converses = std::holds_alternative<Conversation>(request.prompt);
  AnswerWriters writers;
  if (dialect == Dialect::openai) {
    writers = converses ? make_chat_writers(reply, request, model) : make_text_writers(reply, request, model);
  } else {
    writers.push_back(dialect == Dialect::anthropic ? make_messages_writer(reply, request, model)
                                                    : make_responses_writer(reply, request, model));
  }
  const auto count = static_cast<uint32_t>(prompt.tokens.size());
  std::vector<Generation> generations;
  std::vector<std::shared_ptr<Answering>> answers;
  for (std::unique_ptr<AnswerWriter>& writer : writers) {
    if (request.echoes) {
      const std::string text = text_.tokenizer().decode(prompt.tokens, SpecialOutput::skip);
      writer->part({.text = text}, {});
    }
    const auto answering =
        std::make_shared<Answering>(text_.tokenizer(), request, count, prompt.form, std::move(writer), log_);
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(answering);
    }
    if (constraint) sampler->constrain(constraint->restart());
    answers.push_back(answering);
    generations.push_back({.prompt = prompt.tokens,
                           .max_tokens = request.max_tokens.value_or(UINT32_MAX),
                           .end_tokens = options_.end_tokens,
                           .sampler = *sampler,
                           .listener = answering,
                           .gone = reply->gone()});
    ++request.sampling.seed;  // of the next choice
    sampler = Sampler::make(request.sampling);
  }
  const auto submitted = scheduler_.submit(std::move(generations));
  if (submitted) return;
  for (const auto& each : answers)
    each->refuse(submitted.error());
}

Result<OrderedJson> Api::tokenize(std::string_view body) const {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const JsonFields fields(root);
  TRY_ASSIGN(const auto content, fields.text("content"));
  TRY_ASSIGN(const auto prompt, fields.text("prompt"));
  if (!content && !prompt) return invalid("\"content\" (or \"prompt\") is missing");
  TRY_ASSIGN(const auto begins, fields.flag("add_special"));
  const std::string& text = content ? *content : *prompt;
  TRY_ASSIGN(const std::vector<uint32_t> tokens, begins.value_or(prompt.has_value())
                                                     ? text_.encode_raw(text)
                                                     : text_.tokenizer().encode(text, SpecialTokens::parse));
  return OrderedJson{{"tokens", tokens}, {"count", tokens.size()}};
}

Result<OrderedJson> Api::detokenize(std::string_view body) const {
  TRY_ASSIGN(const OrderedJson root, parse_body(body));
  const OrderedJson* tokens = JsonFields(root).find("tokens");
  if (tokens == nullptr || !tokens->is_array()) return invalid("\"tokens\" is not a list");
  std::vector<uint32_t> ids;
  for (const OrderedJson& id : *tokens) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= options_.vocab) return invalid("\"tokens\" has no token id");
    ids.push_back(id.get<uint32_t>());
  }
  const std::string text = text_.tokenizer().decode(ids, SpecialOutput::keep);
  return OrderedJson{{"content", text}, {"prompt", text}};
}

Result<OrderedJson> Api::apply_template(std::string_view body) const {
  TRY_ASSIGN(const AnswerRequest request, parse_chat_request(body, options_.sampling));
  TRY_ASSIGN(std::string text, prompt_text(std::get<Conversation>(request.prompt), request.thinking));
  return OrderedJson{{"prompt", std::move(text)}};
}

Result<OrderedJson> Api::count_tokens(std::string_view body) const {
  TRY_ASSIGN(const AnswerRequest request, parse_messages_request(body, options_.sampling));
  TRY_ASSIGN(const Prompt prompt, prompt_of(request));
  return OrderedJson{{"input_tokens", prompt.tokens.size()}};
}

std::string Api::metrics() const {
  const SchedulerCounts counts = scheduler_.counts();
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

void Api::ping(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    changed_.wait_for(lock, stop, kPingInterval, [] { return false; });
    waiting_.remove_if([](const std::weak_ptr<Answering>& each) { return each.expired(); });
    for (const auto& each : waiting_)
      if (const auto answering = each.lock()) answering->ping(scheduler_.layers_begun(), options_.layers);
  }
}

}  // namespace dspack::runtime
