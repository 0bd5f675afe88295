// Delivers an answer over HTTP in the form of one API, as a stream of events or as one JSON object at the end.
// Threads: one at a time, writers of several choices of one reply at once. Lifetime: keeps the reply until the answer
// has ended. Errors: none; a client that has left is nobody's loss.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/generate/session.h"
#include "runtime/serve/answer_request.h"
#include "runtime/serve/http_server.h"
#include "runtime/serve/token_likelihood.h"
#include "runtime/text/reply_parser.h"

namespace dspack::runtime {

struct AnswerCounts {
  uint32_t prompt_tokens = 0;
  uint32_t kept_tokens = 0;  // of the prompt, in the cache from an earlier request
  uint32_t answer_tokens = 0;
  uint32_t drafted_tokens = 0, accepted_drafts = 0;
  double prompt_seconds = 0;
  double answer_seconds = 0;
};

struct AnswerEnd {
  StopReason reason = StopReason::end_token;
  ReplyCalls calls = ReplyCalls::none;        // of tools
  std::optional<std::string> stop_text = {};  // that ended it
  std::optional<std::string> fault = {};      // of an answer that is not of its form
  AnswerCounts counts;
};

struct AnswerProgress {
  uint32_t read = 0, tokens = 0;   // of the prompt: in the cache, and in all
  uint32_t layer = 0, layers = 0;  // where the pass under way is; 0: not known
  uint32_t answer_tokens = 0;
};

/// For people, in a comment of a stream.
[[nodiscard]] std::string progress_comment(const AnswerProgress& progress);

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  /// The prompt is being read, or text of the answer is held back. Keeps a stream's connection alive.
  virtual void waiting(const AnswerProgress& progress) = 0;
  virtual void part(const ReplyPart& part, std::vector<TokenLikelihood> tokens) = 0;
  virtual void end(const AnswerEnd& end) = 0;
  virtual void fail(const Error& error) = 0;
};

/// A name that no other answer has, after `prefix`.
[[nodiscard]] std::string fresh_id(std::string_view prefix);

/// What a client may be told of an error, and with which status. Paths of this machine stay here.
struct ApiError {
  unsigned status = 500;
  std::string type;
  std::string message;
  std::string code = {};   // OpenAI's; empty: null
  std::string allow = {};  // methods of the path, of status 405
};
[[nodiscard]] ApiError api_error(const Error& error);
/// A prompt is longer than the context, in the words that agents look for before they shorten a conversation: OpenAI's
/// code, and the beginning of Anthropic's message. `is_exact`: no more tokens than these.
[[nodiscard]] ApiError context_exceeded(uint64_t prompt_tokens, uint64_t context, bool is_exact);

/// OpenAI's form of an error: {"error": {"message", "type", "param", "code"}}.
void send_openai_error(HttpReply& reply, const ApiError& error);
/// Anthropic's: {"type": "error", "error": {"type", "message"}}.
void send_anthropic_error(HttpReply& reply, const ApiError& error);

/// One for each of the request's choices, those of the first prompt first.
using AnswerWriters = std::vector<std::unique_ptr<AnswerWriter>>;
[[nodiscard]] AnswerWriters make_chat_writers(std::shared_ptr<HttpReply> reply, const AnswerRequest& request,
                                              std::string model);
[[nodiscard]] AnswerWriters make_text_writers(std::shared_ptr<HttpReply> reply, const AnswerRequest& request,
                                              std::string model);
[[nodiscard]] std::unique_ptr<AnswerWriter> make_responses_writer(std::shared_ptr<HttpReply> reply,
                                                                  const AnswerRequest& request, std::string model);
/// `prompt_tokens`: told when the stream begins.
[[nodiscard]] std::unique_ptr<AnswerWriter> make_messages_writer(std::shared_ptr<HttpReply> reply,
                                                                 const AnswerRequest& request, std::string model,
                                                                 uint32_t prompt_tokens);

}  // namespace dspack::runtime
