// The HTTP interface of a model: the paths of OpenAI's and Anthropic's APIs, and this program's own. docs/serve.md
// describes them for users.
// Threads: `handle` is thread-safe, and takes as long as rendering and encoding a prompt; a background thread pings
// waiting clients. Lifetime: borrows text, scheduler and machine. Errors: sent to the client, including exceptions of a
// request.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/generate/constraint_compiler.h"
#include "runtime/generate/scheduler.h"
#include "runtime/generate/text_model.h"
#include "runtime/serve/answering.h"
#include "runtime/serve/machine_watch.h"
#include "runtime/serve/prompt_maker.h"
#include "runtime/text/tools.h"

namespace dspack::runtime {

/// The page at `/`: chat, with the machine's activity beside it. One document that loads nothing else; its data comes
/// from the API, with the key that its user types.
struct WebPage {
  std::string html;
  std::string policy;  // its Content-Security-Policy
};

[[nodiscard]] WebPage make_web_page();

// The files of runtime/serve/page/; the build makes them constants (cmake/embed.cmake).
extern const std::string_view kWebPageFrame;
extern const std::string_view kWebPageStyle;
extern const std::string_view kWebPageScript;

struct ApiOptions {
  std::string api_key;       // empty: no key is required
  std::string host;          // name or address that it is served under
  std::string allow_origin;  // origin of pages that may send requests, or "*"; empty: only this server's own
  std::string model;         // name of the model
  uint32_t context = 0;      // positions per conversation
  uint32_t vocab = 0;
  uint32_t layers = 0;  // layers in a token's pass
  std::vector<uint32_t> end_tokens;
  uint64_t request_bytes = 0;                              // memory of all requests, without their bodies
  uint64_t cache_memory_bytes = 0;                         // limit of the prefix cache
  SamplerOptions sampling;                                 // defaults for requests
  OrderedJson template_arguments = OrderedJson::object();  // defaults for requests
  std::function<std::tm()> clock;                          // for templates that print the date
};

/// CORS headers that allow pages of `origin`; empty: none.
[[nodiscard]] HttpReply::Headers cross_origin_headers(const std::string& origin);

class Api {
 public:
  Api(const TextModel& text, Scheduler& scheduler, MachineWatch& machine, ApiOptions options, Answering::Log log);
  void handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);

 private:
  enum class Dialect { openai, responses, anthropic };
  /// Where a request came from, and how it is answered.
  struct Call {
    std::shared_ptr<HttpReply> reply;
    Dialect dialect = Dialect::openai;
    std::string client;  // its address
    std::shared_ptr<RequestMemory::Share> memory;
  };
  /// The answers to one request, and the listeners that send them to the client.
  struct Answers {
    std::vector<Generation> generations;
    std::vector<std::shared_ptr<Answering>> listeners;
  };
  [[nodiscard]] bool is_allowed(const HttpRequest& request, HttpReply& reply, Dialect dialect) const;
  [[nodiscard]] bool is_known_host(std::string_view host) const;
  void route(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  void get(const HttpRequest& request, HttpReply& reply);
  void send_health(HttpReply& reply) const;
  /// Logs each distinct line once, up to kMaxSaid lines.
  void say(const std::vector<std::string>& remarks);
  void answer(AnswerRequest request, const Call& call);
  [[nodiscard]] Result<Answers> make_answers(AnswerRequest request, std::span<const Prompt> prompts, const Call& call);
  /// `constraint`: compiled from the request's form; null: the answers are free.
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
  std::array<Answering::Marks, 2> marks_;  // per template: without tools, with tools
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
  std::jthread pinging_;  // declared after the members that it uses; answers waiting for their constraint use them too
  Result<std::unique_ptr<ConstraintCompiler>> constraints_;
};

}  // namespace dspack::runtime
