#include "runtime/text/jinja/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <vector>

#include "format/base/foreign_text.h"
#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/evaluator.h"
#include "runtime/text/jinja/expression_parser.h"
#include "runtime/text/jinja/lexer.h"

namespace dspack::runtime::jinja {
namespace {

/// Visits a program in order. Assigned names are kept as a list, whose end is undone when a scope ends: so the time
/// does not depend on the number of names in scope.
class InputReader {
 public:
  std::set<std::string, std::less<>> run(const Node& program) {
    read(program);
    return std::move(inputs_);
  }

 private:
  void bind(std::string_view name) {
    ++bound_[name];
    names_.push_back(name);
  }

  void undo(size_t count) {
    for (; names_.size() > count; names_.pop_back())
      --bound_[names_.back()];
  }

  void bind_target(const Node& target) {
    if (target.kind == NodeKind::name) return bind(target.text);
    if (target.kind == NodeKind::tuple || target.kind == NodeKind::list) {
      for (const NodePtr& part : target.kids)
        bind_target(*part);
    } else {
      read(target);  // a field of a namespace
    }
  }

  void read(const NodePtr& node) {
    if (node) read(*node);
  }

  void read(const Node& node) {
    const size_t outside = names_.size();
    switch (node.kind) {
      case NodeKind::name: return read_name(node.text);
      case NodeKind::branch: return read_branch(node);
      case NodeKind::loop:
        read(node.kids[1]);
        bind_target(*node.kids[0]);
        bind("loop");
        read(node.kids[2]);
        read(node.kids[3]);
        undo(outside);
        read(node.kids[4]);
        return undo(outside);
      case NodeKind::set: read(node.kids[1]); return bind_target(*node.kids[0]);
      case NodeKind::set_block:
        read(node.kids[2]);
        undo(outside);
        read(node.kids[1]);
        return bind_target(*node.kids[0]);
      case NodeKind::macro: read_macro(node); return bind(node.text);
      case NodeKind::call_block: read_macro(*node.kids[0]); return read(node.kids[1]);
      case NodeKind::filter_block:
        read(node.kids[1]);
        undo(outside);
        return read(node.kids[0]);
      case NodeKind::with:
        for (size_t i = 0; i + 1 < node.kids.size(); i += 2) {
          read(node.kids[i + 1]);
          bind_target(*node.kids[i]);
        }
        read(node.kids.back());
        return undo(outside);
      default:
        for (const NodePtr& kid : node.kids)
          read(kid);
    }
  }

  void read_name(const std::string& name) {
    if (const auto found = bound_.find(name); found != bound_.end() && found->second > 0) return;
    if (std::ranges::find(kFunctions, name) == kFunctions.end()) inputs_.insert(name);
  }

  // A name that every branch assigns is assigned afterwards.
  void read_branch(const Node& node) {
    const size_t outside = names_.size();
    const bool has_else = node.kids.size() % 2 == 1;
    std::map<std::string_view, size_t> branches;  // number of branches that assign the name
    size_t count = 0;
    for (size_t i = 0; i < node.kids.size(); i += 2) {
      const bool is_else = i + 1 == node.kids.size();
      if (!is_else) read(node.kids[i]);
      read(node.kids[is_else ? i : i + 1]);
      ++count;
      if (has_else) {
        const std::set<std::string_view> here(names_.begin() + static_cast<std::ptrdiff_t>(outside), names_.end());
        for (const std::string_view name : here)
          ++branches[name];
      }
      undo(outside);
    }
    for (const auto& [name, in] : branches)
      if (in == count) bind(name);
  }

  void read_macro(const Node& macro) {
    const size_t outside = names_.size();
    bind(macro.text);  // it may call itself
    for (const NodePtr& parameter : macro.kids[0]->kids) {
      read(parameter->kids[0]);
      bind(parameter->text);
    }
    for (const std::string_view given : {"caller", "varargs", "kwargs"})
      bind(given);
    read(macro.kids[1]);
    undo(outside);
  }

  std::set<std::string, std::less<>> inputs_;
  std::map<std::string_view, size_t> bound_;
  std::vector<std::string_view> names_;
};

/// The names that a program reads before it assigns them. Excludes the functions that every template has. A name that
/// is assigned in only some branches counts as unassigned after them.
std::set<std::string, std::less<>> inputs_of(const Node& program) {
  return InputReader().run(program);
}

using Ends = std::initializer_list<std::string_view>;

/// Parses a template's tokens: statements here, expressions in expression_parser.h.
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

Result<NodePtr> parse(std::vector<Token> tokens) {
  return Parser(std::move(tokens)).run();
}

}  // namespace

Result<Program> Program::compile(std::string_view source) {
  TRY_ASSIGN(auto tokens, tokenize(source));
  TRY_ASSIGN(NodePtr root, parse(std::move(tokens)));
  auto inputs = inputs_of(*root);
  return Program(std::shared_ptr<const Node>(std::move(root)), std::move(inputs));
}

Result<std::string> Program::render(const nlohmann::ordered_json& variables, const std::tm& now, Budget& budget) const {
  Evaluator evaluator(budget, now);
  for (const auto& [name, value] : variables.items()) {
    TRY_ASSIGN(Value made, evaluator.heap().from_json(value));
    TRY(evaluator.define(name, std::move(made)));
  }
  return evaluator.run(*root_);
}

Result<std::string> Program::render(const nlohmann::ordered_json& variables, const std::tm& now,
                                    const std::stop_token& stop, Cost* cost) const {
  Budget budget(Budget::limits(bytes_as_value(variables)), stop);
  auto text = render(variables, now, budget);
  if (cost != nullptr) *cost = {.steps = budget.steps(), .bytes = budget.bytes()};
  return text;
}

}  // namespace dspack::runtime::jinja
