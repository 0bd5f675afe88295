// Divides a model's answer, as its text arrives, into reasoning, content and calls of tools, in the forms that the chat
// templates of these models teach:
//
//   reasoning       <think> ... </think>
//   DeepSeek-V3, R1 <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{..}\n```
//                   <｜tool▁call▁end｜> .. <｜tool▁calls▁end｜>
//   DeepSeek-V3.1   the same with <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{..}<｜tool▁call▁end｜>
//   DeepSeek-V3.2   <｜DSML｜function_calls><｜DSML｜invoke name="NAME"><｜DSML｜parameter name="a" string="true">text
//                   </｜DSML｜parameter> .. </｜DSML｜invoke> .. </｜DSML｜function_calls>, also within <think>
//   GLM-4           <tool_call>NAME<arg_key>a</arg_key><arg_value>text</arg_value> .. </tool_call>
//   others          <tool_call>{"name": "NAME", "arguments": {..}}</tool_call>
//   Kimi-K2         <|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{..}
//                   <|tool_call_end|> .. <|tool_calls_section_end|>
//
// What comes out does not depend on how the text is cut into pieces. Text that may begin a mark is held back until that
// is decided. Threads: belongs to one thread. Lifetime: owns its text. Errors: none; a form that is left unfinished is
// delivered as far as it came.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

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

class ReplyParser {
 public:
  enum class Calls { read, none };  // none: what looks like a call is content
  /// `reasons`: the prompt has ended within <think>.
  explicit ReplyParser(bool reasons, Calls calls = Calls::read)
      : state_(reasons ? State::reasoning : State::begin), reads_calls_(calls == Calls::read) {}

  [[nodiscard]] std::vector<ReplyPart> push(std::string_view text);
  /// The text has ended.
  [[nodiscard]] std::vector<ReplyPart> finish();
  /// Whether a call has begun.
  [[nodiscard]] bool calls() const { return calls_; }

  /// Whether a token of this text means something here, though it may be flagged special.
  [[nodiscard]] static bool is_mark(std::string_view token);

 private:
  enum class State {
    begin,      // nothing has come yet but white space
    reasoning,  // within <think>
    after,      // </think> has come, and white space since
    content,
    calls,  // between calls
    head,   // of a call, up to the mark after it
    name,   // of DeepSeek-V3's form
    fence,  // "```json" of the same
    arguments,
    block,  // of a form that is read as a whole, up to end_
  };
  [[nodiscard]] bool step(bool is_end);
  bool take_until(std::span<const std::string_view> marks, ReplyPart::Kind kind, bool is_end, size_t& found);
  bool begin_call(bool is_end);
  bool end_arguments(bool is_end);
  bool end_block(bool is_end);
  void emit(ReplyPart::Kind kind, std::string text, std::string id = {});

  State state_;
  std::string held_;
  std::string head_;
  std::string_view end_;  // the mark that ends the block
  bool is_fenced_ = false;
  bool calls_ = false;
  bool reads_calls_ = true;
  std::vector<ReplyPart> parts_;
};

}  // namespace dspack::runtime
