// Checks a whole answer against its promised form: JSON, JSON of the requested schema, or calls whose arguments follow
// their schemas. A grammar enforces most of a schema during generation; the rest is checked here, and violations are
// reported.
// Threads: single-thread. Errors: none; a check that is not possible counts as a fault.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/serve/answer_form.h"
#include "runtime/text/reply_parser.h"

namespace dspack::runtime {

class AnswerCheck {
 public:
  explicit AnswerCheck(AnswerForm form) : form_(std::move(form)) {}

  /// Takes the next part of the answer.
  void take(const ReplyPart& part);
  /// The fault of the whole answer, as a message for its client; nullopt: none.
  [[nodiscard]] std::optional<std::string> fault() const;

 private:
  struct Call {
    std::string name, arguments;
  };
  AnswerForm form_;
  std::string content_;  // only collected for answers in JSON
  std::vector<Call> calls_;
};

}  // namespace dspack::runtime
