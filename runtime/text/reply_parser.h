// Divides a model's answer, as its text arrives, into reasoning, content and calls of tools. Calls are read only where
// tools are offered, in the marks of the template's family (tools.h), and of offered tools alone; within reasoning only
// if they are whole. All other text is content or reasoning to the byte, whatever marks are in it; but white space
// around </think> and in front of a call, and between calls, belongs to the form.
//
// Where marks are told, a </think> that is none is text, and one after the reasoning is left out.
//
// What comes out does not depend on how the text is cut into pieces. Text that may begin a mark or a call is held back
// until that is decided, and read again if it is none; after 16 MB of that, no more calls are looked for. Threads:
// belongs to one thread. Lifetime: owns its text. Errors: none; arguments that are cut are delivered as far as they
// came, unless their form is told only as a whole, and then its text is.
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
    call,       // a call begins: `text` is the function's name, `id` what the model calls it (Kimi-K2), or empty
    arguments,  // more text of the last call's arguments
  };
  Kind kind = Kind::content;
  std::string text;
  std::string id = {};
  [[nodiscard]] bool operator==(const ReplyPart&) const = default;
};

/// What a reply may consist of.
struct ReplyForm {
  bool reasons = false;                   // the prompt has ended within <think>
  std::vector<CallableTool> tools = {};   // that may be called; none: what looks like a call is text
  std::optional<ToolFamily> family = {};  // in which the template writes calls; absent: any form is read
  bool told_ends = false;                 // </think> is a mark only where `mark_end` says so
};

enum class ReplyCalls {
  none,
  whole,
  broken,  // of one at least the arguments are no object: they were cut, or are no JSON
};

class ReplyParser {
 public:
  explicit ReplyParser(ReplyForm form);

  /// After so many bytes of the whole text comes </think>, as a token of its own. Before that is pushed; of told_ends.
  void mark_end(size_t offset) { ends_.push_back(offset); }
  [[nodiscard]] std::vector<ReplyPart> push(std::string_view text);
  /// The text has ended.
  [[nodiscard]] std::vector<ReplyPart> finish();
  /// Calls so far; one that is under way is broken.
  [[nodiscard]] ReplyCalls calls() const;

 private:
  enum class State {
    begin,  // nothing has come yet but white space
    after,  // </think> has come, and white space since
    text,
    call,  // a mark has come that may begin one
    after_call,
  };
  [[nodiscard]] bool step(bool is_end);
  size_t leading_space();
  /// Takes bytes from the front of what is held.
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
  std::vector<std::string_view> openings_;  // of calls that are still looked for
  State state_;
  bool is_reasoning_;
  bool has_told_ends_;
  std::deque<size_t> ends_;  // of reasoning, that have not been read
  size_t read_ = 0;          // bytes of the text in front of held_
  std::string held_;
  size_t seen_space_ = 0;     // at the front of held_: this is white space, if not more
  size_t space_ = 0;          // bytes of white space in front of the call
  std::string_view opening_;  // its mark
  std::unique_ptr<CallReader> reader_;
  bool is_told_ = false;             // the call that is under way
  std::string_view block_end_ = {};  // that ends the calls
  size_t given_up_bytes_ = 0;
  bool has_calls_ = false;
  bool has_broken_call_ = false;
  std::vector<ReplyPart> parts_;
};

}  // namespace dspack::runtime
