// Reads one call of an offered tool as its text arrives, in the forms of tools.h. What is not exactly of the form, or
// calls what is not offered, is no call, and its reader's owner passes it on as text: nothing is made up for what
// cannot be read.
//
// DeepSeek's and Kimi's arguments are told as they come, as JSON that may turn out to be none. The other forms are told
// as wholes: what a value is, is known at its end, and whether the call can be read, at the call's.
// Threads: single-thread. Lifetime: borrows the tools. Errors: none.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/call_cursor.h"
#include "runtime/text/tools.h"

namespace dspack::runtime {

class CallReader {
 public:
  enum class State {
    undecided,  // may become a call
    no_call,
    arguments,  // it is a call, and its arguments are under way
    whole,
  };

  /// The marks with which a call of this family may begin; absent: of any.
  [[nodiscard]] static std::vector<std::string_view> openings(std::optional<ToolFamily> family);
  /// Of a text that begins with the mark `opening`.
  [[nodiscard]] static std::unique_ptr<CallReader> make(std::string_view opening, std::span<const CallableTool> tools);
  virtual ~CallReader() = default;

  /// `text`: all of it from the opening mark on, which only grows. Once `no_call` or `whole`, that is final.
  [[nodiscard]] State read(std::string_view text);
  /// The text has ended: arguments under way are as long as they will get.
  void cut();

  [[nodiscard]] const std::string& name() const { return name_; }
  /// What the model calls the call (Kimi-K2), or empty.
  [[nodiscard]] const std::string& id() const { return id_; }
  /// More text of the arguments since the last time.
  [[nodiscard]] std::string take_arguments() { return std::exchange(fresh_, {}); }
  /// Whether the arguments, as far as they came, are an object.
  [[nodiscard]] bool has_object() const;
  /// Bytes of the text that have been read: if the call is whole, those that belong to it.
  [[nodiscard]] size_t read_bytes() const { return cursor_.at(); }
  /// What ends the block that the call's opening mark has begun; empty: it has begun none.
  [[nodiscard]] std::string_view end_of_block() const { return end_of_block_; }

 protected:
  using Step = CallCursor::Step;
  explicit CallReader(std::span<const CallableTool> tools) : tools_(tools) {}
  /// One step; what it answers other than `taken` ends the reading for now. `is_whole_` ends it for good.
  virtual Step step() = 0;
  /// Trailing text that was held back as it might not belong to the arguments.
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
  bool has_arguments_ = false;  // they are under way

 private:
  std::string arguments_;
  std::string fresh_;  // of them
};

}  // namespace dspack::runtime
