// Whether a whole answer is what it was promised to be: JSON, of the schema that was asked for, or calls with arguments
// of theirs. A grammar holds answers to the greatest part of a schema while they are written; what it cannot is checked
// here, and what is wrong is told.
// Threads: single-thread. Errors: none; what cannot be checked is a fault.
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

  /// The next part of the answer.
  void take(const ReplyPart& part);
  /// What is wrong with the whole answer, for its client; nullopt: nothing.
  [[nodiscard]] std::optional<std::string> fault() const;

 private:
  struct Call {
    std::string name, arguments;
  };
  AnswerForm form_;
  std::string content_;  // of an answer in JSON
  std::vector<Call> calls_;
};

}  // namespace dspack::runtime
