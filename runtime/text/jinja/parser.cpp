#include "runtime/text/jinja/parser.h"

#include <fmt/format.h>

#include <initializer_list>

#include "format/base/foreign_text.h"
#include "runtime/text/jinja/expression_parser.h"

namespace dspack::runtime::jinja {
namespace {

using Ends = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  Result<NodePtr> run() { return block({}); }

 private:
  /// Parses statements up to a tag named in `ends`, which is consumed; empty: to the end.
  Result<NodePtr> block(Ends ends) {
    TRY(in_.enter());
    std::vector<NodePtr> kids;
    const uint32_t line = in_.current().line;
    for (;;) {
      const Token& token = in_.current();
      if (token.kind == TokenKind::end) {
        if (ends.size() == 0) break;
        return in_.wrong(
            fmt::format("a block is not closed: expected {} (opened before or in line {})", *(ends.end() - 1), line));
      }
      if (token.kind == TokenKind::data) {
        TRY_ASSIGN(NodePtr data, in_.make(Node::Kind::data, token.line, token.text));
        in_.next();
        kids.push_back(std::move(data));
        continue;
      }
      const uint32_t tag_line = token.line;
      const bool prints = token.kind == TokenKind::variable_begin;
      in_.next();
      if (prints) {
        TRY_ASSIGN(NodePtr value, in_.tuple_or_expression(ExpressionParser::Choices::with));
        TRY(end_of(TokenKind::variable_end));
        TRY_ASSIGN(NodePtr print, in_.make(Node::Kind::print, tag_line, "", nodes(std::move(value))));
        kids.push_back(std::move(print));
        continue;
      }
      bool ended = false;
      for (const std::string_view end : ends)
        ended |= in_.is_name(end);
      if (ended) {
        end_ = in_.next().text;
        break;
      }
      TRY_ASSIGN(NodePtr made, statement());
      kids.push_back(std::move(made));
    }
    in_.leave();
    return in_.make(Node::Kind::block, line, "", std::move(kids));
  }

  Result<void> end_of(TokenKind kind) {
    if (in_.skip(kind, "")) return {};
    return in_.wrong("expected the end of the tag");
  }

  Result<NodePtr> body(Ends ends) {
    TRY(end_of(TokenKind::block_end));
    return block(ends);
  }

  Result<NodePtr> statement() {
    const uint32_t line = in_.current().line;
    TRY_ASSIGN(const std::string word, in_.expect_name());
    if (word == "if") return branch(line);
    if (word == "for") return loop(line);
    if (word == "set") return set(line);
    if (word == "macro") return macro(line);
    if (word == "call") return call_block(line);
    if (word == "filter") return filter_block(line);
    if (word == "with") return with(line);
    if (word == "generation") {
      TRY_ASSIGN(NodePtr inner, in_loop_of(0, {"endgeneration"}));
      TRY(end_of(TokenKind::block_end));
      // Has its own scope, like a macro's body.
      return in_.make(Node::Kind::with, line, "", nodes(std::move(inner)));
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) return in_.wrong(fmt::format("{} outside of a loop", word));
      TRY(end_of(TokenKind::block_end));
      return in_.make(word == "break" ? Node::Kind::break_loop : Node::Kind::continue_loop, line);
    }
    for (const std::string_view other : {"include", "import", "from", "extends", "block"}) {
      if (word == other) {
        return Error{ErrorKind::unsupported,
                     fmt::format("line {}: {} needs other templates, which a chat template has not", line, word)};
      }
    }
    return Error{ErrorKind::invalid, fmt::format("line {}: unknown tag {}", line, quote(word))};
  }

  /// Parses a body enclosed by `loops` loops.
  Result<NodePtr> in_loop_of(uint32_t loops, Ends ends) {
    std::swap(loops, loops_);
    auto inner = body(ends);
    std::swap(loops, loops_);
    return inner;
  }

  Result<NodePtr> branch(uint32_t line) {
    std::vector<NodePtr> kids;
    end_ = "if";
    while (end_ == "if" || end_ == "elif") {
      TRY_ASSIGN(NodePtr condition, in_.tuple_or_expression(ExpressionParser::Choices::without));
      TRY_ASSIGN(NodePtr inner, body({"elif", "else", "endif"}));
      kids.push_back(std::move(condition));
      kids.push_back(std::move(inner));
    }
    if (end_ == "else") {
      TRY_ASSIGN(NodePtr inner, body({"endif"}));
      kids.push_back(std::move(inner));
    }
    TRY(end_of(TokenKind::block_end));
    return in_.make(Node::Kind::branch, line, "", std::move(kids));
  }

  Result<NodePtr> loop(uint32_t line) {
    TRY_ASSIGN(NodePtr target, in_.target(false));
    TRY(in_.expect(TokenKind::name, "in"));
    TRY_ASSIGN(NodePtr iterable, in_.tuple_or_expression(ExpressionParser::Choices::without));
    NodePtr condition;
    if (in_.skip(TokenKind::name, "if")) {
      TRY_ASSIGN(condition, in_.expression());
    }
    if (in_.is_name("recursive")) {
      return Error{ErrorKind::unsupported, fmt::format("line {}: recursive loops are not supported", line)};
    }
    TRY_ASSIGN(NodePtr inner, in_loop_of(loops_ + 1, {"else", "endfor"}));
    NodePtr otherwise;
    if (end_ == "else") {
      TRY_ASSIGN(otherwise, body({"endfor"}));
    }
    TRY(end_of(TokenKind::block_end));
    return in_.make(
        Node::Kind::loop, line, "",
        nodes(std::move(target), std::move(iterable), std::move(condition), std::move(inner), std::move(otherwise)));
  }

  Result<NodePtr> set(uint32_t line) {
    TRY_ASSIGN(NodePtr target, in_.target(true));
    if (in_.skip(TokenKind::sign, "=")) {
      TRY_ASSIGN(NodePtr value, in_.tuple_or_expression(ExpressionParser::Choices::with));
      TRY(end_of(TokenKind::block_end));
      return in_.make(Node::Kind::set, line, "", nodes(std::move(target), std::move(value)));
    }
    TRY_ASSIGN(NodePtr filter, in_.filters(nullptr, false));
    TRY_ASSIGN(NodePtr inner, body({"endset"}));
    TRY(end_of(TokenKind::block_end));
    return in_.make(Node::Kind::set_block, line, "", nodes(std::move(target), std::move(filter), std::move(inner)));
  }

  Result<NodePtr> macro(uint32_t line) {
    TRY_ASSIGN(std::string name, in_.expect_name());
    TRY_ASSIGN(NodePtr parameters, in_.make(Node::Kind::block, line));
    TRY(in_.parameters(*parameters));
    TRY_ASSIGN(NodePtr inner, in_loop_of(0, {"endmacro"}));
    TRY(end_of(TokenKind::block_end));
    return in_.make(Node::Kind::macro, line, std::move(name), nodes(std::move(parameters), std::move(inner)));
  }

  Result<NodePtr> call_block(uint32_t line) {
    TRY_ASSIGN(NodePtr parameters, in_.make(Node::Kind::block, line));
    if (in_.is_sign("(")) {
      TRY(in_.parameters(*parameters));
    }
    TRY_ASSIGN(NodePtr call, in_.expression());
    if (call->kind != Node::Kind::call) return in_.wrong("expected a call");
    TRY_ASSIGN(NodePtr inner, in_loop_of(0, {"endcall"}));
    TRY(end_of(TokenKind::block_end));
    // The block becomes a macro named caller.
    TRY_ASSIGN(NodePtr caller,
               in_.make(Node::Kind::macro, line, "caller", nodes(std::move(parameters), std::move(inner))));
    return in_.make(Node::Kind::call_block, line, "", nodes(std::move(caller), std::move(call)));
  }

  Result<NodePtr> filter_block(uint32_t line) {
    TRY_ASSIGN(NodePtr filter, in_.filters(nullptr, true));
    TRY_ASSIGN(NodePtr inner, body({"endfilter"}));
    TRY(end_of(TokenKind::block_end));
    return in_.make(Node::Kind::filter_block, line, "", nodes(std::move(filter), std::move(inner)));
  }

  Result<NodePtr> with(uint32_t line) {
    std::vector<NodePtr> kids;
    while (!in_.is(TokenKind::block_end)) {
      TRY_ASSIGN(NodePtr target, in_.target(false));
      TRY(in_.expect(TokenKind::sign, "="));
      TRY_ASSIGN(NodePtr value, in_.expression());
      kids.push_back(std::move(target));
      kids.push_back(std::move(value));
      if (!in_.skip(TokenKind::sign, ",")) break;
    }
    TRY_ASSIGN(NodePtr inner, body({"endwith"}));
    TRY(end_of(TokenKind::block_end));
    kids.push_back(std::move(inner));
    return in_.make(Node::Kind::with, line, "", std::move(kids));
  }

  ExpressionParser in_;
  std::string end_;  // name of the tag that ended the last block
  uint32_t loops_ = 0;
};

}  // namespace

Result<NodePtr> parse(std::vector<Token> tokens) {
  return Parser(std::move(tokens)).run();
}

}  // namespace dspack::runtime::jinja
