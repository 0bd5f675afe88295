// Delivers an answer over HTTP in the form of one API, as a stream of events or as one JSON object at the end.
// Threads: each writer one at a time; writers of several choices of one reply concurrently. Lifetime: keeps the reply
// until the answer has ended. Errors: none; output to a client that has left is dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/generate/session.h"
#include "runtime/serve/answer_request.h"
#include "runtime/serve/http_server.h"
#include "runtime/text/reply_parser.h"
#include "runtime/text/tokenizer.h"

namespace dspack::runtime {

/// Likelihood of a token in an answer or prompt: natural logarithms of the softmax over the model's logits, before
/// temperature and the like.
struct TokenLikelihood {
  std::string text;  // bytes, not always whole characters
  double logprob = 0;
  struct Other {
    std::string text;
    double logprob = 0;
  };
  std::vector<Other> likeliest = {};
  bool is_known = true;  // false: a prompt's first token, which has no logits
  size_t offset = 0;     // code points before it in its choice's text, including an echoed prompt
};

/// `logits`: those that predict the token, not empty. `most`: how many of the most likely tokens; equal ones in order
/// of id.
[[nodiscard]] TokenLikelihood likelihood_of(const Tokenizer& tokenizer, uint32_t id, std::span<const float> logits,
                                            uint32_t most);

struct AnswerCounts {
  uint32_t prompt_tokens = 0;
  uint32_t kept_tokens = 0;  // prompt tokens found in the cache of an earlier request
  uint32_t answer_tokens = 0;
  uint32_t drafted_tokens = 0, accepted_drafts = 0;
  double prompt_seconds = 0;
  double answer_seconds = 0;
};

struct AnswerEnd {
  StopReason reason = StopReason::end_token;
  ReplyCalls calls = ReplyCalls::none;
  std::optional<std::string> stop_text = {};  // the stop string that ended it
  std::optional<std::string> fault = {};      // how the answer violates its form
  AnswerCounts counts;
};

struct AnswerProgress {
  uint32_t read = 0, tokens = 0;   // prompt tokens in the KV cache, and in total
  uint32_t layer = 0, layers = 0;  // progress of the current pass; 0: unknown
  uint32_t answer_tokens = 0;
};

/// Progress as a comment in a stream of events, for people.
[[nodiscard]] std::string progress_comment(const AnswerProgress& progress);

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  /// The prompt is being read, or text of the answer is held back. A stream sends something, to keep its connection
  /// alive.
  virtual void waiting(const AnswerProgress& progress) = 0;
  virtual void part(const ReplyPart& part, std::vector<TokenLikelihood> tokens) = 0;
  virtual void end(const AnswerEnd& end) = 0;
  virtual void fail(const Error& error) = 0;
};

/// A random id after `prefix`, unique among answers.
[[nodiscard]] std::string fresh_id(std::string_view prefix);

/// The message and status that a client gets for an error. Paths on this machine are not revealed.
struct ApiError {
  unsigned status = 500;
  std::string type;
  std::string message;
  std::string code = {};   // OpenAI's error code; empty: null
  std::string allow = {};  // allowed methods of the path, for status 405
};
[[nodiscard]] ApiError api_error(const Error& error);
/// The prompt is longer than the context. Uses the words that agents look for before they shorten a conversation:
/// OpenAI's code, and the beginning of Anthropic's message. `is_exact`: false if the prompt may have more tokens than
/// `prompt_tokens`.
[[nodiscard]] ApiError context_exceeded(uint64_t prompt_tokens, uint64_t context, bool is_exact);

/// The form of answers and errors; RequestApi (field_table.h) is the form of requests.
enum class Dialect { openai, responses, anthropic };
/// The dialect of a path's errors.
[[nodiscard]] Dialect dialect_of(std::string_view path);
/// OpenAI's errors are {"error": {"message", "type", "param", "code"}}, also of responses; Anthropic's {"type":
/// "error", "error": {"type", "message"}}.
void send_error(HttpReply& reply, Dialect dialect, const ApiError& error);

/// One for each choice of the request, ordered by prompt.
using AnswerWriters = std::vector<std::unique_ptr<AnswerWriter>>;
[[nodiscard]] AnswerWriters make_chat_writers(std::shared_ptr<HttpReply> reply, const AnswerRequest& request,
                                              std::string model);
[[nodiscard]] AnswerWriters make_text_writers(std::shared_ptr<HttpReply> reply, const AnswerRequest& request,
                                              std::string model);
[[nodiscard]] std::unique_ptr<AnswerWriter> make_responses_writer(std::shared_ptr<HttpReply> reply,
                                                                  const AnswerRequest& request, std::string model);
/// `prompt_tokens`: reported at the start of the stream.
[[nodiscard]] std::unique_ptr<AnswerWriter> make_messages_writer(std::shared_ptr<HttpReply> reply,
                                                                 const AnswerRequest& request, std::string model,
                                                                 uint32_t prompt_tokens);

}  // namespace dspack::runtime
