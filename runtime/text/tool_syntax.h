// The syntax of calls in a chat template's family (tools.h lists the forms), as the form of an answer in xgrammar's
// language of structural tags: so a model can be held to a call that the parser then finds.
// Threads: plain values, pure functions. Errors: unsupported (a template that writes no calls, or in an unknown form).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/tools.h"

namespace dspack::runtime {

class ToolSyntax {
 public:
  /// Detects the syntax by rendering a conversation with a call.
  [[nodiscard]] static Result<ToolSyntax> of(const ChatTemplate& chat);

  [[nodiscard]] ToolFamily family() const { return family_; }

  /// One or more calls of these tools; only one unless `is_parallel`.
  [[nodiscard]] Result<OrderedJson> calls(const std::vector<CallableTool>& tools, bool is_parallel,
                                          const Tokenizer& tokenizer) const;
  /// Any text, followed by such calls or the end.
  [[nodiscard]] Result<OrderedJson> text_with_calls(const std::vector<CallableTool>& tools, bool is_parallel,
                                                    const Tokenizer& tokenizer) const;

 private:
  explicit ToolSyntax(ToolFamily family, size_t dsml_form = 0) : family_(family), dsml_form_(dsml_form) {}
  [[nodiscard]] Result<OrderedJson> block(const std::vector<CallableTool>& tools, bool is_parallel,
                                          const Tokenizer& tokenizer) const;
  [[nodiscard]] std::string begin() const;
  [[nodiscard]] std::string_view end() const;
  ToolFamily family_;
  size_t dsml_form_;  // index into marks::kDsml of the marks around the calls
};

/// Whether a form spells this added token as text: marks within calls of GLM and DSML. All other added tokens occur in
/// a form only as tokens, never within its strings.
[[nodiscard]] bool is_spelled(std::string_view added_token);

/// A text as a form: added tokens as tokens, the rest spelled.
[[nodiscard]] OrderedJson constant_form(std::string_view text, const Tokenizer& tokenizer);
/// These parts one after the other.
[[nodiscard]] OrderedJson sequence_form(std::vector<OrderedJson> parts);
/// JSON of this schema. Errors: those of schema_grammar.
[[nodiscard]] Result<OrderedJson> schema_form(const OrderedJson& schema);
/// Any text up to </think>, then `answer`; if `is_optional`, either that after <think>, or the answer at once.
[[nodiscard]] OrderedJson reasoned_form(OrderedJson answer, bool is_optional, const Tokenizer& tokenizer);

}  // namespace dspack::runtime
