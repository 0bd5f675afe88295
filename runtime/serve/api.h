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
#include "runtime/serve/api_options.h"
#include "runtime/serve/machine_watch.h"
#include "runtime/serve/prompt_maker.h"
#include "runtime/serve/server_facts.h"
#include "runtime/serve/text_functions.h"
#include "runtime/text/tools.h"

namespace dspack::runtime {

class Api {
 public:
  Api(const TextModel& text, Scheduler& scheduler, MachineWatch& machine, ApiOptions options, Answering::Log log);
  void handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);

 private:
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
  void route(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  /// Logs each distinct line once, up to kMaxSaid lines.
  void say(const std::vector<std::string>& remarks);
  void answer(AnswerRequest request, const Call& call);
  [[nodiscard]] Result<Answers> make_answers(AnswerRequest request, std::span<const Prompt> prompts, const Call& call);
  /// `constraint`: compiled from the request's form; null: the answers are free.
  void begin(Answers answers, const TokenConstraint* constraint);
  void ping(const std::stop_token& stop);

  const TextModel& text_;
  PromptMaker prompts_;
  std::array<Answering::Marks, 2> marks_;  // per template: without tools, with tools
  Scheduler& scheduler_;
  MachineWatch& machine_;
  ApiOptions options_;
  RequestMemory memory_;
  ServerFacts facts_;        // borrows options_ and memory_
  TextFunctions functions_;  // borrows prompts_ and options_
  Answering::Log log_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::list<std::weak_ptr<Answering>> waiting_;
  std::set<std::string> said_;
  std::jthread pinging_;  // declared after the members that it uses; answers waiting for their constraint use them too
  Result<std::unique_ptr<ConstraintCompiler>> constraints_;
};

}  // namespace dspack::runtime
