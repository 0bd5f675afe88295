#include "runtime/text/jinja/value_tests.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "format/base/foreign_text.h"
#include "runtime/text/jinja/filters.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/operators.h"
#include "runtime/text/jinja/printing.h"

namespace dspack::runtime::jinja {
namespace {

constexpr std::array<std::string_view, 39> kTests = {
    "defined",     "undefined", "none",     "string",   "number", "integer",  "float",  "boolean",
    "mapping",     "iterable",  "sequence", "callable", "true",   "false",    "odd",    "even",
    "divisibleby", "equalto",   "eq",       "ne",       "lt",     "lessthan", "le",     "gt",
    "greaterthan", "ge",        "in",       "sameas",   "lower",  "upper",    "filter", "test",
    "==",          "!=",        "<",        "<=",       ">",      ">=",       "escaped"};

std::string_view sign_of(std::string_view name) {
  if (name == "eq" || name == "equalto" || name == "==") return "==";
  if (name == "ne" || name == "!=") return "!=";
  if (name == "lt" || name == "lessthan" || name == "<") return "<";
  if (name == "le" || name == "<=") return "<=";
  if (name == "gt" || name == "greaterthan" || name == ">") return ">";
  if (name == "ge" || name == ">=") return ">=";
  return name == "in" ? "in" : "";
}

}  // namespace

bool is_test(std::string_view name) {
  return std::ranges::find(kTests, name) != kTests.end();
}

Result<bool> apply_test(std::string_view name, const Value& value, const Arguments& args, Heap& heap) {
  TRY(heap.budget().step());
  if (!is_test(name)) return Error{ErrorKind::unsupported, fmt::format("there is no test {}", quote(name))};
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.is_text();
  if (name == "number") return value.is_number() || value.digits() != nullptr;
  if (name == "integer") return value.is_integer() || value.digits() != nullptr;
  if (name == "float") return value.is_float();
  if (name == "boolean") return value.is_bool();
  if (name == "true") return value.is_bool() && value.truth();
  if (name == "false") return value.is_bool() && !value.truth();
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "callable") return value.callable() != nullptr || value.is_undefined();  // as in Python
  if (name == "escaped") return false;
  if (name == "sequence" && value.list() != nullptr && value.list()->generator) return false;
  if (name == "iterable" || name == "sequence") {
    return value.is_text() || value.list() != nullptr || value.dict() != nullptr || value.is_undefined();
  }
  if (name == "lower" || name == "upper") {
    TRY_ASSIGN(const Value text, as_text(value, heap));
    TRY_ASSIGN(const Value holds, call_method(text, name == "lower" ? "islower" : "isupper", {}, heap));
    return holds.truth();
  }
  if (name == "filter" || name == "test") {
    return value.is_text() && (name == "filter" ? is_filter(*value.text()) : is_test(*value.text()));
  }
  if (name == "odd" || name == "even") {
    TRY_ASSIGN(const Value rest, binary("%", value, Value(int64_t{2}), heap));
    return rest.real() == (name == "odd" ? 1.0 : 0.0);
  }
  if (args.positional.size() != 1) return invalid(fmt::format("the test {} needs one argument", name));
  const Value& other = args.positional.front();
  if (name == "divisibleby") {
    TRY_ASSIGN(const Value rest, binary("%", value, other, heap));
    return rest.real() == 0.0;
  }
  // Equal texts and numbers count as identical, as in most cases in Python.
  if (name == "sameas") return value.type() == other.type() && equal(value, other, heap.budget());
  return compare_by(sign_of(name), value, other, heap);
}

}  // namespace dspack::runtime::jinja
