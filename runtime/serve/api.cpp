#include "runtime/serve/api.h"

#include <fmt/format.h>

#include <algorithm>

#include "dspack_version.h"
#include "format/base/foreign_text.h"
#include "runtime/serve/host_address.h"
#include "runtime/serve/openapi.h"
#include "runtime/serve/request_fields.h"
#include "runtime/text/tool_syntax.h"

namespace dspack::runtime {
namespace {

constexpr std::chrono::seconds kPingInterval{1};  // at which those are looked for that were told nothing lately
// Of one request: each answer keeps its prompt, 16 MB in all.
constexpr uint64_t kMostPromptTokens = 1U << 22U;
// The same, told with the prompts' tokens: some 100 bytes each, until the last answer has ended.
constexpr uint64_t kMostLikelihoods = 1U << 21U;
constexpr size_t kMostSaid = 256;  // remarks, in a server's life
constexpr std::string_view kModelPath = "/v1/models/";

bool is_health(std::string_view path) {
  return path == "/health" || path == "/v1/health";
}

/// Of a path that is not there, or not with this method.
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

/// "org%2Fname" as "org/name"; what is no escape stays.
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

/// In a time that does not depend on where they differ.
bool are_equal(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0U : 1U;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? '\0' : b[i % b.size()]);
  return difference == 0;
}

std::optional<ToolFamily> family_of(const Result<ChatTemplate>& chat) {
  if (!chat) return std::nullopt;
  const auto syntax = ToolSyntax::of(*chat);
  return syntax ? std::optional(syntax->family()) : std::nullopt;
}

/// What browsers say of a request that a page of another origin has caused, also where they name no origin: pictures,
/// scripts, frames. Following a link to the page is none.
bool is_from_elsewhere(const HttpRequest& request) {
  const std::string_view site = request.header("sec-fetch-site");
  if (site != "cross-site" && site != "same-site") return false;
  return request.path != "/" || request.header("sec-fetch-dest") != "document";
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
      families_{family_of(text.chat_template(false)), family_of(text.chat_template(true))},
      scheduler_(scheduler),
      machine_(machine),
      options_(std::move(options)),
      log_(std::move(log)),
      pinging_([this](const std::stop_token& stop) { ping(stop); }),
      constraints_(ConstraintCompiler::make(text.tokenizer(), options_.vocab, options_.end_tokens)) {}

bool Api::is_known_host(std::string_view host) const {
  const auto named = host_of(host);
  if (named && (means_this_machine(*named) || is_same_host(*named, options_.host))) return true;
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
  if (request.method != "POST") return fail(*reply, dialect, no_answer(request));
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
    if (!result) return fail(*reply, dialect, result.error());
    return reply->send(200, "application/json", json_text(*result));
  }
  fail(*reply, dialect, no_answer(request));
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
  if (is_health(request.path)) return reply.send(200, "application/json", json_text({{"status", "ok"}}));
  if (request.path == "/v1/models") {
    return reply.send(200, "application/json", json_text({{"object", "list"}, {"data", OrderedJson::array({model})}}));
  }
  if (request.path == "/version") return reply.send(200, "application/json", json_text({{"version", kVersion}}));
  if (request.path == "/openapi.json") return reply.send(200, "application/json", json_text(openapi_description()));
  // Clients encode the slash of a name; others do not.
  if (request.path.starts_with(kModelPath) &&
      (request.path.substr(kModelPath.size()) == options_.model ||
       percent_decoded(request.path.substr(kModelPath.size())) == options_.model))
    return reply.send(200, "application/json", json_text(model));
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
  const ApiError error = no_answer(request);
  request.path.starts_with("/v1/messages") ? send_anthropic_error(reply, error) : send_openai_error(reply, error);
}

Result<RenderOptions> Api::render_options(const Conversation& conversation, const std::optional<bool>& thinking) const {
  OrderedJson arguments = options_.template_arguments;
  if (thinking) arguments.update(thinking_arguments(*thinking));
  for (const auto& [name, value] : conversation.arguments.items()) {
    if (is_given_to_templates(name))
      return invalid(fmt::format("\"chat_template_kwargs\" cannot hold {}", quote(name)));
    const bool is_thinking = thinking_arguments(true).contains(name) && value.is_boolean();
    arguments.update(is_thinking ? thinking_arguments(value.get<bool>()) : OrderedJson{{name, value}});
  }
  return RenderOptions{.add_generation_prompt = conversation.add_generation_prompt,
                       .continue_final_message = conversation.continue_final_message,
                       .tools = conversation.tools,
                       .arguments = std::move(arguments),
                       .now = options_.clock()};
}

size_t Api::answer_begin(std::string_view text, std::span<const ChatMessage> messages, RenderOptions options) const {
  options.continue_final_message = false;
  const auto before = text_.render_chat(messages.first(messages.size() - 1), std::move(options));
  if (!before) return 0;  // such a template cannot tell
  const auto differs = static_cast<size_t>(std::ranges::mismatch(text, *before).in1 - text.begin());
  // Both may go on with a mark of reasoning, and with another one.
  return differs - std::min(differs, std::string_view("<think>").size());
}

Result<Api::Prompt> Api::prompt_of(const AnswerRequest& request) const {
  const auto& conversation = std::get<Conversation>(request.prompt);
  TRY_ASSIGN(const RenderOptions options, render_options(conversation, request.thinking));
  TRY_ASSIGN(const std::string text, text_.render_chat(conversation.messages, options));
  const bool continues = conversation.continue_final_message;
  const size_t begin = continues ? answer_begin(text, conversation.messages, options) : text.size();
  TRY_ASSIGN(std::vector<uint32_t> tokens, text_.tokenizer().encode(text, SpecialTokens::parse));
  Prompt prompt{.tokens = std::move(tokens), .form = Answering::Form::conversation};
  const auto& chat = text_.chat_template();
  if (continues_reasoning(text, begin)) {
    prompt.form = Answering::Form::conversation_in_thought;
    prompt.reasoning = Reasoning::begun;
  } else if (continues &&
             conversation.messages.back().content.value_or("").find_first_not_of(" \t\r\n") != std::string::npos) {
    prompt.reasoning = Reasoning::none;  // the answer has begun
  } else if (!text.ends_with("</think>") && !text.ends_with("</think>\n\n") && chat && chat->has_thinking_switch()) {
    prompt.reasoning = Reasoning::optional;  // the switch may leave it to the model
  }
  return prompt;
}

Result<std::vector<Api::Prompt>> Api::prompts_of(const AnswerRequest& request) const {
  std::vector<Prompt> prompts;
  const auto* texts = std::get_if<std::vector<TextPrompt>>(&request.prompt);
  if (texts == nullptr) {
    TRY_ASSIGN(prompts.emplace_back(), prompt_of(request));
    return prompts;
  }
  uint64_t tokens = 0;
  for (const TextPrompt& each : *texts) {
    Prompt& prompt = prompts.emplace_back();
    if (const auto* text = std::get_if<std::string>(&each)) {
      TRY_ASSIGN(prompt.tokens, text_.encode_raw(*text));
    } else {
      prompt.tokens = std::get<std::vector<uint32_t>>(each);
    }
    tokens += prompt.tokens.size() * request.choices;
  }
  const auto refuse = [](uint64_t count, std::string_view of, uint64_t most) {
    return invalid(
        fmt::format("the prompts of this request, once for each answer, have {} {}, of {} at most; send fewer "
                    "in a request",
                    count, of, most));
  };
  if (tokens > kMostPromptTokens) return refuse(tokens, "tokens", kMostPromptTokens);
  const uint64_t likelihoods = request.scores_prompt() ? tokens * (1 + *request.top_logprobs) : 0;
  if (likelihoods > kMostLikelihoods) return refuse(likelihoods, "logprobs", kMostLikelihoods);
  return prompts;
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
      if (said_.size() >= kMostSaid || !said_.insert(line).second) continue;
    }
    log_({ErrorKind::unsupported, line});
  }
}

void Api::answer(Result<AnswerRequest> request, const std::shared_ptr<HttpReply>& reply, Dialect dialect) {
  if (!request) return fail(*reply, dialect, request.error());
  say(request->remarks);
  auto prompts = prompts_of(*request);
  if (!prompts) return fail(*reply, dialect, prompts.error());
  for (const Prompt& each : *prompts) {
    if (each.tokens.size() > options_.context)
      return fail(*reply, dialect, context_exceeded(each.tokens.size(), options_.context));
  }
  const auto* conversation = std::get_if<Conversation>(&request->prompt);
  const bool has_tools = conversation != nullptr && !conversation->tools.is_null();
  const auto form =
      compose_form(request->form, prompts->front().reasoning, text_.chat_template(has_tools), text_.tokenizer());
  if (!form) return fail(*reply, dialect, form.error());
  // What the model may do by itself, it does without xgrammar as well.
  const bool can_be_free = request->form.kind == AnswerForm::Kind::strict_calls && !constraints_;
  if (form->is_null() || can_be_free) {
    auto answers = make_answers(*std::move(request), *prompts, reply, dialect);
    return answers ? begin(*std::move(answers), nullptr) : fail(*reply, dialect, answers.error());
  }
  if (request->ignores_end_tokens || request->min_tokens > 0) {
    return fail(
        *reply, dialect,
        Error{ErrorKind::unsupported,
              "\"min_tokens\" or \"ignore_eos\" beside an answer that is held to a form, which says where it ends"});
  }
  if (conversation != nullptr && conversation->continue_final_message &&
      request->form.kind != AnswerForm::Kind::strict_calls) {
    return fail(*reply, dialect,
                Error{ErrorKind::unsupported,
                      "a last message of the assistant beside an answer that is held to a form: "
                      "what it begins with is not looked at"});
  }
  if (!constraints_) return fail(*reply, dialect, constraints_.error());
  // A form may take seconds, in which the clients of streams are told that they are not forgotten.
  auto answers = make_answers(*std::move(request), *prompts, reply, dialect);
  if (!answers) return fail(*reply, dialect, answers.error());
  (*constraints_)
      ->compile(
          json_text(*form),
          [this, answers = *std::move(answers)](const Result<std::unique_ptr<TokenConstraint>>& constraint) {
            if (constraint) return begin(answers, constraint->get());
            for (const auto& each : answers.listeners)
              each->refuse(constraint.error());
          },
          reply->gone());
}

Result<Api::Answers> Api::make_answers(AnswerRequest request, std::span<const Prompt> prompts,
                                       const std::shared_ptr<HttpReply>& reply, Dialect dialect) {
  std::vector<uint32_t> end_tokens = request.stop_tokens;
  if (!request.ignores_end_tokens) std::ranges::copy(options_.end_tokens, std::back_inserter(end_tokens));
  request.sampling.min_tokens = request.min_tokens;
  request.sampling.end_tokens = end_tokens;
  const std::string model = request.model.empty() ? options_.model : request.model;
  const bool converses = std::holds_alternative<Conversation>(request.prompt);
  AnswerWriters writers;
  if (dialect == Dialect::openai) {
    writers = converses ? make_chat_writers(reply, request, model) : make_text_writers(reply, request, model);
  } else {
    writers.push_back(
        dialect == Dialect::anthropic
            ? make_messages_writer(reply, request, model, static_cast<uint32_t>(prompts.front().tokens.size()))
            : make_responses_writer(reply, request, model));
  }
  const auto* conversation = std::get_if<Conversation>(&request.prompt);
  const auto family = families_[conversation != nullptr && !conversation->tools.is_null() ? 1 : 0];
  const uint64_t first_seed = request.sampling.seed;
  Answers answers;
  for (size_t index = 0; index < writers.size(); ++index) {
    const Prompt& prompt = prompts[index / request.choices];
    const auto count = static_cast<uint32_t>(prompt.tokens.size());
    request.sampling.seed = first_seed + index % request.choices;  // of each prompt as if it were alone
    TRY_ASSIGN(Sampler sampler, Sampler::make(request.sampling));
    const auto answering = std::make_shared<Answering>(text_.tokenizer(), request, count, prompt.form, family,
                                                       std::move(writers[index]), log_);
    if (request.echoes && !request.scores_prompt()) answering->echo(prompt.tokens);
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
                                   .gone = reply->gone(),
                                   .scores_prompt = request.scores_prompt()});
  }
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
  const auto& conversation = std::get<Conversation>(request.prompt);
  TRY_ASSIGN(RenderOptions options, render_options(conversation, request.thinking));
  TRY_ASSIGN(std::string text, text_.render_chat(conversation.messages, std::move(options)));
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
      if (const auto answering = each.lock())
        answering->ping(Answering::Clock::now(), scheduler_.layers_begun(), options_.layers);
  }
}

}  // namespace dspack::runtime
