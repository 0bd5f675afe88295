#include "runtime/serve/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <new>
#include <string_view>
#include <tuple>

#include "format/base/foreign_text.h"
#include "runtime/serve/access.h"
#include "runtime/serve/field_table.h"
#include "runtime/serve/host_address.h"
#include "runtime/serve/request_fields.h"
#include "runtime/text/json.h"
#include "runtime/text/tool_syntax.h"

namespace dspack::runtime {
namespace {

constexpr std::chrono::seconds kPingInterval{1};  // between checks for clients that need a ping
// Memory of an answer besides its prompt and its tools.
constexpr uint64_t kAnswerBytes = 16U << 10U;
constexpr size_t kMaxSaid = 256;  // remarks logged during a server's life
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

Answering::Marks marks_of(const TextModel& text, bool with_tools) {
  const auto& chat = text.chat_template(with_tools);
  const auto syntax = chat ? ToolSyntax::of(*chat) : Result<ToolSyntax>(chat.error());
  return {.family = syntax ? std::optional(syntax->family()) : std::nullopt,
          .end_think = text.end_of_reasoning(with_tools)};
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

void fail(HttpReply& reply, Dialect dialect, const ApiError& error) {
  send_error(reply, dialect, error);
}

void fail(HttpReply& reply, Dialect dialect, const Error& error) {
  send_error(reply, dialect, api_error(error));
}

}  // namespace

Api::Api(const TextModel& text, Scheduler& scheduler, MachineWatch& machine, ApiOptions options, Answering::Log log)
    : text_(text),
      prompts_(text,
               {.context = options.context, .template_arguments = options.template_arguments, .clock = options.clock}),
      marks_{marks_of(text, false), marks_of(text, true)},
      scheduler_(scheduler),
      machine_(machine),
      options_(std::move(options)),
      memory_(options_.request_bytes),
      facts_(scheduler, memory_, options_),
      functions_(text, prompts_, options_),
      log_(std::move(log)),
      pinging_([this](const std::stop_token& stop) { ping(stop); }),
      constraints_(ConstraintCompiler::make(text.tokenizer(), options_.vocab, options_.end_tokens)) {}

/// An exception ends only its own request.
void Api::handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  const Dialect dialect = dialect_of(request.path);
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
  const Dialect dialect = dialect_of(request.path);
  // CORS preflight: browsers send it without the key.
  if (request.method == "OPTIONS" && !options_.allow_origin.empty()) return reply->send(200, "text/plain", "");
  if (const auto refusal = access_refusal(request, options_)) return fail(*reply, dialect, *refusal);
  if (request.method == "GET" && request.path == "/machine") {
    const auto watched = machine_.watch(reply);
    return watched ? void() : fail(*reply, dialect, watched.error());
  }
  if ((request.method == "GET" || request.method == "HEAD") && facts_.send(request, *reply)) return;
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
  const auto memory = std::make_shared<RequestMemory::Share>(memory_);
  const auto enough = memory->need(reading_bytes(body));
  if (!enough) return fail(*reply, dialect, enough.error());
  for (const auto& [name, parse, form] : kAnswers) {
    if (path != name) continue;
    auto parsed = parse(body, options_.sampling);
    if (!parsed) return fail(*reply, dialect, parsed.error());
    return answer(*std::move(parsed), {.reply = reply, .dialect = form, .client = request.client, .memory = memory});
  }
  if (const auto result = functions_.answer(path, body, {.memory = *memory, .gone = reply->gone()})) {
    if (!*result) return fail(*reply, dialect, result->error());
    return reply->send(200, "application/json", json_text(**result));
  }
  fail(*reply, dialect, no_answer(request));
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
  switch (call.dialect) {
    case Dialect::openai:
      writers =
          converses ? make_chat_writers(call.reply, request, model) : make_text_writers(call.reply, request, model);
      break;
    case Dialect::responses: writers.push_back(make_responses_writer(call.reply, request, model)); break;
    case Dialect::anthropic:
      writers.push_back(
          make_messages_writer(call.reply, request, model, static_cast<uint32_t>(prompts.front().tokens.size())));
      break;
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
