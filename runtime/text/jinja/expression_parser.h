// Parses expressions by recursive descent in Jinja's order of precedence, and keeps the position in the tokens.
// Threads: single-thread. Errors: invalid, with the line; budget (nested too deeply).
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/lexer.h"

namespace dspack::runtime::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  /// An expression, including `a if b else c`.
  [[nodiscard]] Result<NodePtr> expression();
  /// One expression, or several separated by commas.
  enum class Choices { with, without };
  [[nodiscard]] Result<NodePtr> tuple_or_expression(Choices choices);
  /// A target of an assignment. Ends before `in` or `=`.
  [[nodiscard]] Result<NodePtr> target(bool with_attributes);
  /// Parses calls and attributes after `node`.
  [[nodiscard]] Result<NodePtr> postfix(NodePtr node);
  /// Parses `| name(...)`; `node` may be null.
  [[nodiscard]] Result<NodePtr> filters(NodePtr node, bool starts_without_bar);
  /// Parses (a, b=1).
  [[nodiscard]] Result<void> parameters(Node& into);

  [[nodiscard]] const Token& current() const { return tokens_[at_]; }
  const Token& next();
  [[nodiscard]] bool is(TokenKind kind, std::string_view text = {}) const;
  [[nodiscard]] bool is_sign(std::string_view text) const { return is(TokenKind::sign, text); }
  [[nodiscard]] bool is_name(std::string_view text) const { return is(TokenKind::name, text); }
  bool skip(TokenKind kind, std::string_view text);
  [[nodiscard]] Result<void> expect(TokenKind kind, std::string_view text);
  [[nodiscard]] Result<std::string> expect_name();
  [[nodiscard]] Error wrong(std::string_view what) const;

  [[nodiscard]] Result<NodePtr> make(Node::Kind kind, uint32_t line, std::string text = {},
                                     std::vector<NodePtr> kids = {});
  static constexpr uint32_t kMaxDepth = 150;
  [[nodiscard]] Result<void> enter();
  void leave() { --depth_; }

 private:
  /// Parses `or` or `and`.
  Result<NodePtr> logical(Node::Kind kind);
  Result<NodePtr> negation();
  Result<NodePtr> comparison();
  Result<NodePtr> sum();
  Result<NodePtr> join();
  Result<NodePtr> product();
  Result<NodePtr> power();
  Result<NodePtr> unary(bool with_filters);
  Result<NodePtr> primary();
  Result<NodePtr> parenthesised();
  Result<NodePtr> list_literal();
  Result<NodePtr> dict_literal();
  Result<NodePtr> number();
  Result<NodePtr> subscript(NodePtr node);
  Result<NodePtr> test(NodePtr node);
  Result<void> arguments(Node& into);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  uint32_t depth_ = 0;
};

template <class... Kids>
std::vector<NodePtr> nodes(Kids... kids) {
  std::vector<NodePtr> list;
  (list.push_back(std::move(kids)), ...);
  return list;
}

}  // namespace dspack::runtime::jinja
