// The HTTP interface of a model: the paths of OpenAI's and Anthropic's APIs, and this program's own. docs/serve.md
// describes them for users.
// Threads: `handle` may be called by several at once, and takes as long as rendering and encoding a prompt; a thread of
// its own pings those who wait. Lifetime: borrows text, scheduler, machine and options. Errors: told to the
// client, what a request throws included.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>

#include "runtime/generate/constraint_compiler.h"
#include "runtime/generate/scheduler.h"
#include "runtime/generate/text_model.h"
#include "runtime/serve/answering.h"
#include "runtime/serve/machine_watch.h"
#include "runtime/serve/prompt_maker.h"
#include "runtime/serve/web_page.h"
#include "runtime/text/tools.h"

namespace dspack::runtime {

struct ApiOptions {
  std::string api_key;       // empty: none is needed
  std::string host;          // the name or address by which it is served
  std::string allow_origin;  // of pages that may ask, or "*"; empty: this server's own alone
  std::string model;         // its name
  uint32_t context = 0;      // positions of a conversation
  uint32_t vocab = 0;
  uint32_t layers = 0;  // that a token passes
  std::vector<uint32_t> end_tokens;
  uint64_t request_bytes = 0;                              // that all requests may take beside their bodies
  uint64_t cache_memory_bytes = 0;                         // that the prefix cache may take
  SamplerOptions sampling;                                 // where a request says nothing
  OrderedJson template_arguments = OrderedJson::object();  // the same
  std::function<std::tm()> clock;                          // for templates that print the date
};

/// What browsers are told of `origin`, whose pages may ask; empty: nothing.
[[nodiscard]] HttpReply::Headers cross_origin_headers(const std::string& origin);

class Api {
 public:
  Api(const TextModel& text, Scheduler& scheduler, MachineWatch& machine, ApiOptions options, Answering::Log log);
  void handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);

 private:
  enum class Dialect { openai, responses, anthropic };
  /// Who asks for answers, and how they are told.
  struct Call {
    std::shared_ptr<HttpReply> reply;
    Dialect dialect = Dialect::openai;
    std::string client;  // its address
    std::shared_ptr<RequestMemory::Share> memory;
  };
  /// To one request, and who tells each to the client.
  struct Answers {
    std::vector<Generation> generations;
    std::vector<std::shared_ptr<Answering>> listeners;
  };
  [[nodiscard]] bool is_allowed(const HttpRequest& request, HttpReply& reply, Dialect dialect) const;
  [[nodiscard]] bool is_known_host(std::string_view host) const;
  void route(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void get(const HttpRequest& request, HttpReply& reply);
  void send_health(HttpReply& reply) const;
  /// Says each line once, of so many different ones as nobody minds in a log.
  void say(const std::vector<std::string>& remarks);
  void answer(AnswerRequest request, const Call& call);
  [[nodiscard]] Result<Answers> make_answers(AnswerRequest request, std::span<const Prompt> prompts, const Call& call);
  /// `constraint`: what the request's form has become; null: its answers are free.
  void begin(Answers answers, const TokenConstraint* constraint);
  static void fail(HttpReply& reply, Dialect dialect, const Error& error);
  static void fail(HttpReply& reply, Dialect dialect, const ApiError& error);
  [[nodiscard]] Result<OrderedJson> tokenize(std::string_view body, const PromptMaker::Asker& asker) const;
  [[nodiscard]] Result<OrderedJson> detokenize(std::string_view body, const PromptMaker::Asker& asker) const;
  [[nodiscard]] Result<OrderedJson> apply_template(std::string_view body, const PromptMaker::Asker& asker) const;
  [[nodiscard]] Result<OrderedJson> count_tokens(std::string_view body, const PromptMaker::Asker& asker) const;
  void ping(const std::stop_token& stop);

  const TextModel& text_;
  PromptMaker prompts_;
  std::array<Answering::Marks, 2> marks_;  // of the templates: without tools, and with them
  Scheduler& scheduler_;
  MachineWatch& machine_;
  const WebPage page_ = make_web_page();
  ApiOptions options_;
  RequestMemory memory_;
  Answering::Log log_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::list<std::weak_ptr<Answering>> waiting_;
  std::set<std::string> said_;
  std::jthread pinging_;  // it uses all the others, and so do the answers that wait for their constraint
  Result<std::unique_ptr<ConstraintCompiler>> constraints_;
};

}  // namespace dspack::runtime
