// Reads one call of an offered tool as its text arrives, in the forms of tools.h. Text that is not exactly of the form,
// or calls a tool that is not offered, is no call; the reader's owner passes it on as text. Nothing is made up for
// unreadable parts.
//
// DeepSeek-V3's and Kimi's arguments are delivered as they arrive, as JSON that may turn out to be malformed. The other
// forms are delivered whole: the kind of a value is known only at its end, and whether the call is readable at the
// call's.
// Threads: single-thread. Lifetime: borrows the tools. Errors: none.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/tools.h"

namespace dspack::runtime {

/// A position in a growing text, for reading marks and the text between them. A step takes what it asks for, reports
/// that it is missing, or that more text is needed; then the cursor does not move. Borrows the text shown last.
class CallCursor {
 public:
  enum class Step { taken, missing, undecided };

  /// `text`: the previous text with more appended.
  void show(std::string_view text) { text_ = text; }
  [[nodiscard]] std::string_view text() const { return text_; }
  [[nodiscard]] size_t at() const { return at_; }
  [[nodiscard]] std::string_view rest() const { return text_.substr(at_); }
  void take(size_t bytes) { at_ += bytes; }
  void skip_space();

  [[nodiscard]] Step take_mark(std::string_view mark);
  /// Takes the first of `marks` that begins here; `found`: its index.
  [[nodiscard]] Step take_any(std::span<const std::string_view> marks, size_t& found);
  /// Takes everything before `end`, and `end`; missing if that is longer than `most` bytes.
  [[nodiscard]] Step take_until(std::string_view end, size_t most, std::string_view& between);

 private:
  std::string_view text_;
  size_t at_ = 0;
  size_t searched_ = 0;  // take_until has found no `end` that begins before this
};

/// Number of bytes at the end of a text that may be the beginning of a mark.
[[nodiscard]] size_t begun_mark(std::string_view text, std::span<const std::string_view> marks);

class CallReader {
 public:
  enum class State {
    undecided,  // may become a call
    no_call,
    arguments,  // it is a call, and its arguments are arriving
    whole,
  };

  /// The marks with which a call of this family may begin; nullopt: of any family.
  [[nodiscard]] static std::vector<std::string_view> openings(std::optional<ToolFamily> family);
  /// A reader for a text that begins with the mark `opening`.
  [[nodiscard]] static std::unique_ptr<CallReader> make(std::string_view opening, std::span<const CallableTool> tools);
  virtual ~CallReader() = default;

  /// `text`: everything from the opening mark on, which only grows. `no_call` and `whole` are final.
  [[nodiscard]] State read(std::string_view text);
  /// Call when the text has ended: the current arguments will not grow.
  void cut();

  [[nodiscard]] const std::string& name() const { return name_; }
  /// The model's id of the call (Kimi-K2), or empty.
  [[nodiscard]] const std::string& id() const { return id_; }
  /// Text of the arguments since the previous call of this function.
  [[nodiscard]] std::string take_arguments() { return std::exchange(fresh_, {}); }
  /// Whether the arguments so far are an object.
  [[nodiscard]] bool has_object() const;
  /// Bytes of the text read so far: once the call is whole, those that belong to it.
  [[nodiscard]] size_t read_bytes() const { return cursor_.at(); }
  /// The mark that ends the block which the call's opening mark has begun; empty: it has begun none.
  [[nodiscard]] std::string_view end_of_block() const { return end_of_block_; }

 protected:
  using Step = CallCursor::Step;
  explicit CallReader(std::span<const CallableTool> tools) : tools_(tools) {}
  /// One step; any result but `taken` ends the reading for now. `is_whole_` ends it for good.
  virtual Step step() = 0;
  /// Delivers trailing text that was held back as it might not belong to the arguments.
  virtual void end_arguments() {}
  void add_arguments(std::string_view text) {
    fresh_ += text;
    arguments_ += text;
  }

  std::span<const CallableTool> tools_;
  CallCursor cursor_;
  std::string name_;
  std::string id_;
  std::string_view end_of_block_;
  bool is_whole_ = false;
  bool has_arguments_ = false;  // they are arriving

 private:
  std::string arguments_;
  std::string fresh_;  // part of arguments_ that has not been taken
};

}  // namespace dspack::runtime
