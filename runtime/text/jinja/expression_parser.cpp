#include "runtime/text/jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "format/base/foreign_text.h"

namespace dspack::runtime::jinja {

const Token& ExpressionParser::next() {
  const Token& token = tokens_[at_];
  if (token.kind != TokenKind::end) ++at_;
  return token;
}

bool ExpressionParser::is(TokenKind kind, std::string_view text) const {
  return current().kind == kind && (text.empty() || current().text == text);
}

bool ExpressionParser::skip(TokenKind kind, std::string_view text) {
  if (!is(kind, text)) return false;
  next();
  return true;
}

Result<void> ExpressionParser::expect(TokenKind kind, std::string_view text) {
  if (skip(kind, text)) return {};
  return wrong(fmt::format("expected {}", text));
}

Result<std::string> ExpressionParser::expect_name() {
  if (current().kind != TokenKind::name) return wrong("expected a name");
  return next().text;
}

Error ExpressionParser::wrong(std::string_view what) const {
  constexpr size_t kMaxShown = 40;
  const Token& token = current();
  const std::string seen =
      token.kind == TokenKind::end || token.kind == TokenKind::block_end || token.kind == TokenKind::variable_end
          ? "the end"
          : quote(std::string_view(token.text).substr(0, kMaxShown));
  return {ErrorKind::invalid, fmt::format("line {}: {}, found {}", token.line, what, seen)};
}

Result<void> ExpressionParser::enter() {
  if (++depth_ <= kMaxDepth) return {};
  return Error{ErrorKind::budget, fmt::format("line {}: the template is nested too deeply", current().line)};
}

Result<NodePtr> ExpressionParser::make(Node::Kind kind, uint32_t line, std::string text, std::vector<NodePtr> kids) {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->line = line;
  node->text = std::move(text);
  for (const NodePtr& kid : kids)
    if (kid) node->depth = std::max(node->depth, kid->depth + 1);
  node->kids = std::move(kids);
  // A chain such as a + b + ... makes a deep tree without nested source.
  if (node->depth > 2 * kMaxDepth) {
    return Error{ErrorKind::budget, fmt::format("line {}: the template is nested too deeply", line)};
  }
  return node;
}

Result<NodePtr> ExpressionParser::expression() {
  TRY(enter());
  TRY_ASSIGN(NodePtr node, logical(Node::Kind::either));
  while (is_name("if")) {
    const uint32_t line = next().line;
    TRY_ASSIGN(NodePtr condition, logical(Node::Kind::either));
    NodePtr other;
    if (skip(TokenKind::name, "else")) {
      TRY_ASSIGN(other, expression());
    }
    TRY_ASSIGN(node,
               make(Node::Kind::choice, line, "", nodes(std::move(node), std::move(condition), std::move(other))));
  }
  leave();
  return node;
}

Result<NodePtr> ExpressionParser::logical(Node::Kind kind) {
  const bool either = kind == Node::Kind::either;
  const auto operand = [&] { return either ? logical(Node::Kind::both) : negation(); };
  TRY_ASSIGN(NodePtr left, operand());
  while (is_name(either ? "or" : "and")) {
    const uint32_t line = next().line;
    TRY_ASSIGN(NodePtr right, operand());
    TRY_ASSIGN(left, make(kind, line, "", nodes(std::move(left), std::move(right))));
  }
  return left;
}

Result<NodePtr> ExpressionParser::negation() {
  if (!is_name("not")) return comparison();
  const uint32_t line = next().line;
  TRY(enter());
  TRY_ASSIGN(NodePtr operand, negation());
  leave();
  return make(Node::Kind::unary, line, "not", nodes(std::move(operand)));
}

Result<NodePtr> ExpressionParser::comparison() {
  constexpr std::array<std::string_view, 6> kSigns = {"==", "!=", "<", "<=", ">", ">="};
  const uint32_t line = current().line;
  TRY_ASSIGN(NodePtr first, sum());
  std::vector<NodePtr> kids;
  for (;;) {
    std::string sign;
    if (current().kind == TokenKind::sign && std::ranges::find(kSigns, current().text) != kSigns.end()) {
      sign = next().text;
    } else if (skip(TokenKind::name, "in")) {
      sign = "in";
    } else if (is_name("not") && tokens_[at_ + 1].kind == TokenKind::name && tokens_[at_ + 1].text == "in") {
      next();
      next();
      sign = "not in";
    } else {
      break;
    }
    TRY_ASSIGN(NodePtr operand, sum());
    TRY_ASSIGN(NodePtr part, make(Node::Kind::compare_to, line, std::move(sign), nodes(std::move(operand))));
    kids.push_back(std::move(part));
  }
  if (kids.empty()) return first;
  kids.insert(kids.begin(), std::move(first));
  return make(Node::Kind::comparison, line, "", std::move(kids));
}

Result<NodePtr> ExpressionParser::sum() {
  TRY_ASSIGN(NodePtr left, join());
  while (is_sign("+") || is_sign("-")) {
    const Token sign = next();
    TRY_ASSIGN(NodePtr right, join());
    TRY_ASSIGN(left, make(Node::Kind::binary, sign.line, sign.text, nodes(std::move(left), std::move(right))));
  }
  return left;
}

Result<NodePtr> ExpressionParser::join() {
  const uint32_t line = current().line;
  TRY_ASSIGN(NodePtr first, product());
  if (!is_sign("~")) return first;
  auto kids = nodes(std::move(first));
  while (skip(TokenKind::sign, "~")) {
    TRY_ASSIGN(NodePtr part, product());
    kids.push_back(std::move(part));
  }
  return make(Node::Kind::join, line, "", std::move(kids));
}

Result<NodePtr> ExpressionParser::product() {
  TRY_ASSIGN(NodePtr left, power());
  while (is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%")) {
    const Token sign = next();
    TRY_ASSIGN(NodePtr right, power());
    TRY_ASSIGN(left, make(Node::Kind::binary, sign.line, sign.text, nodes(std::move(left), std::move(right))));
  }
  return left;
}

Result<NodePtr> ExpressionParser::power() {
  TRY_ASSIGN(NodePtr left, unary(true));
  while (is_sign("**")) {
    const uint32_t line = next().line;
    TRY_ASSIGN(NodePtr right, unary(true));
    TRY_ASSIGN(left, make(Node::Kind::binary, line, "**", nodes(std::move(left), std::move(right))));
  }
  return left;
}

Result<NodePtr> ExpressionParser::unary(bool with_filters) {
  NodePtr node;
  if (is_sign("-") || is_sign("+")) {
    const Token sign = next();
    TRY(enter());
    TRY_ASSIGN(node, unary(false));
    leave();
    TRY_ASSIGN(node, make(Node::Kind::unary, sign.line, sign.text, nodes(std::move(node))));
  } else {
    TRY_ASSIGN(node, primary());
  }
  TRY_ASSIGN(node, postfix(std::move(node)));
  if (!with_filters) return node;
  return filters(std::move(node), false);
}

Result<NodePtr> ExpressionParser::primary() {
  const Token& token = current();
  const uint32_t line = token.line;
  if (token.kind == TokenKind::name) {
    const std::string name = next().text;
    TRY_ASSIGN(NodePtr node, make(Node::Kind::constant, line));
    if (name == "true" || name == "True") {
      node->value = Value(true);
    } else if (name == "false" || name == "False") {
      node->value = Value(false);
    } else if (name == "none" || name == "None") {
      node->value = Value(None{});
    } else {
      node->kind = Node::Kind::name;
      node->text = name;
    }
    return node;
  }
  if (token.kind == TokenKind::string) {
    std::string text;
    while (current().kind == TokenKind::string)
      text += next().text;
    TRY_ASSIGN(NodePtr node, make(Node::Kind::constant, line));
    node->value = Value(std::make_shared<const std::string>(std::move(text)));
    return node;
  }
  if (token.kind == TokenKind::integer || token.kind == TokenKind::real) return number();
  if (is_sign("(")) return parenthesised();
  if (is_sign("[")) return list_literal();
  if (is_sign("{")) return dict_literal();
  return wrong("expected an expression");
}

Result<NodePtr> ExpressionParser::number() {
  const Token token = next();
  TRY_ASSIGN(NodePtr node, make(Node::Kind::constant, token.line));
  if (token.kind == TokenKind::real) {
    node->value = Value(std::strtod(token.text.c_str(), nullptr));
    return node;
  }
  std::string_view digits = token.text;
  int base = 10;
  if (digits.size() > 2 && digits[0] == '0' && digits[1] > '9') {
    base = (digits[1] | 0x20) == 'x' ? 16 : (digits[1] | 0x20) == 'b' ? 2 : 8;
    digits.remove_prefix(2);
  }
  int64_t value = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), value, base).ec != std::errc()) {
    return Error{ErrorKind::unsupported, fmt::format("line {}: an integer has more than 63 bits", token.line)};
  }
  node->value = Value(value);
  return node;
}

Result<NodePtr> ExpressionParser::parenthesised() {
  const uint32_t line = next().line;
  std::vector<NodePtr> kids;
  bool comma = false;
  TRY(enter());
  while (!is_sign(")")) {
    TRY_ASSIGN(NodePtr kid, expression());
    kids.push_back(std::move(kid));
    if (!skip(TokenKind::sign, ",")) break;
    comma = true;
  }
  leave();
  TRY(expect(TokenKind::sign, ")"));
  if (kids.size() == 1 && !comma) return std::move(kids.front());
  return make(Node::Kind::tuple, line, "", std::move(kids));
}

Result<NodePtr> ExpressionParser::list_literal() {
  const uint32_t line = next().line;
  std::vector<NodePtr> kids;
  while (!is_sign("]")) {
    TRY_ASSIGN(NodePtr kid, expression());
    kids.push_back(std::move(kid));
    if (!skip(TokenKind::sign, ",")) break;
  }
  TRY(expect(TokenKind::sign, "]"));
  return make(Node::Kind::list, line, "", std::move(kids));
}

Result<NodePtr> ExpressionParser::dict_literal() {
  const uint32_t line = next().line;
  std::vector<NodePtr> kids;
  while (!is_sign("}")) {
    TRY_ASSIGN(NodePtr key, expression());
    TRY(expect(TokenKind::sign, ":"));
    TRY_ASSIGN(NodePtr value, expression());
    kids.push_back(std::move(key));
    kids.push_back(std::move(value));
    if (!skip(TokenKind::sign, ",")) break;
  }
  TRY(expect(TokenKind::sign, "}"));
  return make(Node::Kind::dict, line, "", std::move(kids));
}

Result<NodePtr> ExpressionParser::postfix(NodePtr node) {
  for (;;) {
    if (is_sign(".") || is_sign("[")) {
      TRY_ASSIGN(node, subscript(std::move(node)));
    } else if (is_sign("(")) {
      TRY_ASSIGN(node, make(Node::Kind::call, current().line, "", nodes(std::move(node))));
      TRY(arguments(*node));
    } else {
      return node;
    }
  }
}

Result<NodePtr> ExpressionParser::subscript(NodePtr node) {
  const Token sign = next();
  if (sign.text == ".") {
    if (current().kind == TokenKind::integer) {
      TRY_ASSIGN(NodePtr key, number());
      return make(Node::Kind::item, sign.line, "", nodes(std::move(node), std::move(key)));
    }
    TRY_ASSIGN(std::string name, expect_name());
    return make(Node::Kind::attribute, sign.line, std::move(name), nodes(std::move(node)));
  }
  std::vector<NodePtr> keys;
  bool comma = false;
  while (!is_sign("]")) {
    std::vector<NodePtr> parts;
    bool slice = false;
    for (;;) {
      NodePtr part;
      if (!is_sign(":") && !is_sign("]") && !is_sign(",")) {
        TRY_ASSIGN(part, expression());
      }
      parts.push_back(std::move(part));
      if (parts.size() > 3) return wrong("a slice has three parts");
      if (!skip(TokenKind::sign, ":")) break;
      slice = true;
    }
    if (slice) {
      parts.resize(3);
      TRY_ASSIGN(NodePtr key, make(Node::Kind::slice, sign.line, "", std::move(parts)));
      keys.push_back(std::move(key));
    } else {
      if (!parts.front()) return wrong("expected an expression");
      keys.push_back(std::move(parts.front()));
    }
    comma = skip(TokenKind::sign, ",");
    if (!comma) break;
  }
  TRY(expect(TokenKind::sign, "]"));
  if (keys.empty()) return wrong("expected a subscript");
  NodePtr key;
  if (keys.size() == 1 && !comma) {
    key = std::move(keys.front());
  } else {
    TRY_ASSIGN(key, make(Node::Kind::tuple, sign.line, "", std::move(keys)));
  }
  return make(Node::Kind::item, sign.line, "", nodes(std::move(node), std::move(key)));
}

Result<NodePtr> ExpressionParser::filters(NodePtr node, bool starts_without_bar) {
  for (;;) {
    if (is_sign("|") || starts_without_bar) {
      const uint32_t line = current().line;
      if (!starts_without_bar) next();
      starts_without_bar = false;
      TRY_ASSIGN(std::string name, expect_name());
      TRY_ASSIGN(node, make(Node::Kind::filter, line, std::move(name), nodes(std::move(node))));
      if (is_sign("(")) {
        TRY(arguments(*node));
      }
    } else if (node && is_name("is")) {
      TRY_ASSIGN(node, test(std::move(node)));
    } else if (node && is_sign("(")) {
      TRY_ASSIGN(node, make(Node::Kind::call, current().line, "", nodes(std::move(node))));
      TRY(arguments(*node));
    } else {
      return node;
    }
  }
}

Result<NodePtr> ExpressionParser::test(NodePtr node) {
  const uint32_t line = next().line;
  const bool negated = skip(TokenKind::name, "not");
  TRY_ASSIGN(std::string name, expect_name());
  TRY_ASSIGN(node, make(Node::Kind::test, line, std::move(name), nodes(std::move(node))));
  const Token& token = current();
  if (is_sign("(")) {
    TRY(arguments(*node));
  } else if ((token.kind == TokenKind::name && token.text != "else" && token.text != "or" && token.text != "and") ||
             token.kind == TokenKind::string || token.kind == TokenKind::integer || token.kind == TokenKind::real ||
             is_sign("[") || is_sign("{")) {
    if (is_name("is")) return wrong("tests cannot be chained with is");
    TRY_ASSIGN(NodePtr argument, primary());
    TRY_ASSIGN(argument, postfix(std::move(argument)));
    node->depth = std::max(node->depth, argument->depth + 1);
    node->kids.push_back(std::move(argument));
  }
  if (!negated) return node;
  return make(Node::Kind::unary, line, "not", nodes(std::move(node)));
}

Result<void> ExpressionParser::arguments(Node& into) {
  bool has_names = false;
  TRY(expect(TokenKind::sign, "("));
  while (!is_sign(")")) {
    const uint32_t line = current().line;
    NodePtr argument;
    const bool list = is_sign("*");
    if (list || is_sign("**")) {
      next();
      TRY_ASSIGN(argument, expression());
      TRY_ASSIGN(argument,
                 make(list ? Node::Kind::unpack_list : Node::Kind::unpack_dict, line, "", nodes(std::move(argument))));
    } else if (current().kind == TokenKind::name && tokens_[at_ + 1].kind == TokenKind::sign &&
               tokens_[at_ + 1].text == "=") {
      std::string name = next().text;
      next();
      TRY_ASSIGN(argument, expression());
      has_names = true;
      TRY_ASSIGN(argument, make(Node::Kind::keyword, line, std::move(name), nodes(std::move(argument))));
    } else {
      TRY_ASSIGN(argument, expression());
      if (has_names) return wrong("an argument follows one by name");
    }
    into.depth = std::max(into.depth, argument->depth + 1);
    into.kids.push_back(std::move(argument));
    if (!skip(TokenKind::sign, ",")) break;
  }
  return expect(TokenKind::sign, ")");
}

Result<void> ExpressionParser::parameters(Node& into) {
  TRY(expect(TokenKind::sign, "("));
  bool defaults = false;
  while (!is_sign(")")) {
    const uint32_t line = current().line;
    TRY_ASSIGN(std::string name, expect_name());
    NodePtr otherwise;
    if (skip(TokenKind::sign, "=")) {
      TRY_ASSIGN(otherwise, expression());
      defaults = true;
    } else if (defaults) {
      return wrong("a parameter without a default follows one with a default");
    }
    TRY_ASSIGN(NodePtr parameter, make(Node::Kind::parameter, line, std::move(name), nodes(std::move(otherwise))));
    into.depth = std::max(into.depth, parameter->depth + 1);
    into.kids.push_back(std::move(parameter));
    if (!skip(TokenKind::sign, ",")) break;
  }
  return expect(TokenKind::sign, ")");
}

Result<NodePtr> ExpressionParser::tuple_or_expression(Choices choices) {
  const auto one = [&] { return choices == Choices::with ? expression() : logical(Node::Kind::either); };
  const uint32_t line = current().line;
  TRY_ASSIGN(NodePtr first, one());
  if (!is_sign(",")) return first;
  std::vector<NodePtr> kids = nodes(std::move(first));
  while (skip(TokenKind::sign, ",")) {
    if (is(TokenKind::variable_end) || is(TokenKind::block_end)) break;
    TRY_ASSIGN(NodePtr kid, one());
    kids.push_back(std::move(kid));
  }
  return make(Node::Kind::tuple, line, "", std::move(kids));
}

Result<NodePtr> ExpressionParser::target(bool with_attributes) {
  const uint32_t line = current().line;
  if (with_attributes && current().kind == TokenKind::name && tokens_[at_ + 1].text == "." &&
      tokens_[at_ + 1].kind == TokenKind::sign) {
    TRY_ASSIGN(NodePtr space, make(Node::Kind::name, line, next().text));
    next();
    TRY_ASSIGN(std::string field, expect_name());
    return make(Node::Kind::attribute, line, std::move(field), nodes(std::move(space)));
  }
  std::vector<NodePtr> names;
  bool comma = false;
  do {
    if (is_name("in") || is_sign("=") || is_sign(")")) break;
    NodePtr part;
    if (skip(TokenKind::sign, "(")) {
      TRY(enter());
      TRY_ASSIGN(part, target(with_attributes));
      leave();
      TRY(expect(TokenKind::sign, ")"));
    } else {
      const std::string name = current().text;
      for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
        if (name == constant) return wrong("this cannot be assigned to");
      }
      TRY_ASSIGN(std::string taken, expect_name());
      TRY_ASSIGN(part, make(Node::Kind::name, line, std::move(taken)));
    }
    names.push_back(std::move(part));
    comma = is_sign(",");
  } while (skip(TokenKind::sign, ","));
  if (names.empty()) return wrong("expected a name");
  if (names.size() == 1 && !comma) return std::move(names.front());
  return make(Node::Kind::tuple, line, "", std::move(names));
}

}  // namespace dspack::runtime::jinja
