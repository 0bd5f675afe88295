// Divides a model's answer, as its text arrives, into reasoning, content and tool calls. Calls are read only if tools
// are offered, only with the marks of the template's family (tools.h), and only of offered tools; within reasoning only
// if they are whole. All other text is content or reasoning to the byte, whatever marks it contains; but white space
// around </think>, before a call and between calls belongs to the form.
//
// If ReplyForm::told_ends, a </think> that was not announced is text, and an announced one after the reasoning is
// dropped.
//
// The output does not depend on how the text is cut into pieces. Text that may begin a mark or a call is held back
// until that is decided, and read again if it is no call; after 16 MB of such text, no more calls are looked for.
// Threads: belongs to one thread. Lifetime: owns its text. Errors: none; the arguments of a cut call are delivered as
// far as they arrived, or its whole text if its form is delivered only whole.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/call_reader.h"
#include "runtime/text/tools.h"

namespace dspack::runtime {

struct ReplyPart {
  enum class Kind {
    reasoning,
    content,
    call,       // a call begins: `text` is the function's name, `id` the model's id of the call (Kimi-K2), or empty
    arguments,  // more text of the last call's arguments
  };
  Kind kind = Kind::content;
  std::string text;
  std::string id = {};
  [[nodiscard]] bool operator==(const ReplyPart&) const = default;
};

/// The possible parts of a reply.
struct ReplyForm {
  bool reasons = false;                   // the prompt has ended within <think>
  std::vector<CallableTool> tools = {};   // tools that may be called; none: calls are read as text
  std::optional<ToolFamily> family = {};  // syntax of calls in the template; nullopt: any is read
  bool told_ends = false;                 // </think> is a mark only if announced by `mark_end`
};

enum class ReplyCalls {
  none,
  whole,
  broken,  // the arguments of at least one are not an object: cut, or not JSON
};

class ReplyParser {
 public:
  explicit ReplyParser(ReplyForm form);

  /// Announces that </think> follows as a token after `offset` bytes of the whole text. Call before that text is
  /// pushed; only with told_ends.
  void mark_end(size_t offset) { ends_.push_back(offset); }
  [[nodiscard]] std::vector<ReplyPart> push(std::string_view text);
  /// Ends the text.
  [[nodiscard]] std::vector<ReplyPart> finish();
  /// Calls so far; an unfinished one is broken.
  [[nodiscard]] ReplyCalls calls() const;

 private:
  enum class State {
    begin,  // only white space so far
    after,  // only white space since </think>
    text,
    call,  // after a mark that may begin a call
    after_call,
  };
  [[nodiscard]] bool step(bool is_end);
  size_t leading_space();
  /// Drops bytes from the front of held_.
  void drop(size_t bytes);
  bool begin(bool is_end);
  bool read_text(bool is_end);
  bool read_call(bool is_end);
  bool give_up_call(size_t read_bytes);
  bool follow_call(bool is_end);
  void tell_call();
  void emit(ReplyPart::Kind kind, std::string_view text);
  [[nodiscard]] ReplyPart::Kind kind() const {
    return is_reasoning_ ? ReplyPart::Kind::reasoning : ReplyPart::Kind::content;
  }

  std::vector<CallableTool> tools_;
  std::vector<std::string_view> openings_;  // marks of calls that are still looked for
  State state_;
  bool is_reasoning_;
  bool has_told_ends_;
  std::deque<size_t> ends_;  // announced </think> that have not been read, as offsets
  size_t read_ = 0;          // bytes of the text before held_
  std::string held_;
  size_t seen_space_ = 0;     // held_ begins with at least this much white space
  size_t space_ = 0;          // bytes of white space before the call
  std::string_view opening_;  // the call's opening mark
  std::unique_ptr<CallReader> reader_;
  bool is_told_ = false;             // the current call has been emitted
  std::string_view block_end_ = {};  // mark that ends the block of calls
  size_t given_up_bytes_ = 0;
  bool has_calls_ = false;
  bool has_broken_call_ = false;
  std::vector<ReplyPart> parts_;
};

}  // namespace dspack::runtime
