// Programs of the template language, written by a grammar: loops and their state, namespaces, searches, ranges,
// recursion, filters, splits, slices, formats. Input: bytes, each of which decides one choice; at the end of the bytes
// every choice is the first. So each input is a template that compiles, unlike damaged text (jinja.cpp).
#include <array>
#include <string>
#include <string_view>

#include "runtime/text/jinja/program.h"
#include "runtime/text/jinja/value.h"
#include "runtime/text/unicode.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using runtime::jinja::Budget;

namespace {

using namespace std::string_view_literals;

constexpr std::array kNames = {"a"sv,    "b"sv,      "ns"sv,      "messages"sv, "m"sv,
                               "loop"sv, "caller"sv, "varargs"sv, "none_such"sv};
constexpr std::array kFields = {
    "index0"sv,       "revindex0"sv, "length"sv,     "previtem"sv,  "nextitem"sv, "first"sv,  "role"sv,
    "content"sv,      "x"sv,         "depth"sv,      "cycle"sv,     "changed"sv,  "items"sv,  "keys"sv,
    "upper"sv,        "strip"sv,     "lstrip"sv,     "split"sv,     "rsplit"sv,   "find"sv,   "rfind"sv,
    "index"sv,        "count"sv,     "replace"sv,    "partition"sv, "join"sv,     "get"sv,    "format"sv,
    "startswith"sv,   "endswith"sv,  "splitlines"sv, "title"sv,     "zfill"sv,    "values"sv, "copy"sv,
    "removeprefix"sv, "swapcase"sv,  "isalpha"sv,    "istitle"sv};
constexpr std::array kFilters = {
    "length"sv,    "upper"sv,  "list"sv,  "join"sv,   "tojson"sv,   "string"sv,    "sort"sv,       "unique"sv,
    "reverse"sv,   "first"sv,  "last"sv,  "map"sv,    "select"sv,   "reject"sv,    "selectattr"sv, "rejectattr"sv,
    "dictsort"sv,  "items"sv,  "int"sv,   "float"sv,  "abs"sv,      "round"sv,     "sum"sv,        "min"sv,
    "max"sv,       "trim"sv,   "title"sv, "indent"sv, "truncate"sv, "escape"sv,    "replace"sv,    "default"sv,
    "wordcount"sv, "format"sv, "attr"sv,  "safe"sv,   "lower"sv,    "capitalize"sv};
constexpr std::array kTests = {"defined"sv, "none"sv,    "odd"sv,      "divisibleby"sv, "in"sv,
                               "lower"sv,   "upper"sv,   "sameas"sv,   "eq"sv,          "lt"sv,
                               "string"sv,  "mapping"sv, "iterable"sv, "callable"sv};
constexpr std::array kSigns = {" + "sv, " - "sv,  " * "sv, " / "sv,  " // "sv,     " % "sv,   " ** "sv,
                               " ~ "sv, " == "sv, " < "sv, " in "sv, " not in "sv, " and "sv, " or "sv};
constexpr std::array kConstants = {"1"sv,
                                   "0"sv,
                                   "-1"sv,
                                   "''"sv,
                                   "'a'"sv,
                                   "'ab ab'"sv,
                                   "'\\u00e4\\n\\u0390\\U0001f600'"sv,
                                   "none"sv,
                                   "true"sv,
                                   "2.5"sv,
                                   "1e300"sv,
                                   "9223372036854775807"sv,
                                   "7"sv,
                                   "99"sv,
                                   "'%s-%(x)5.1f'"sv,
                                   "'{0}{}{x}'"sv,
                                   "'role'"sv,
                                   "'x.0'"sv,
                                   "'index0'"sv,
                                   "'a'.join"sv};

class Writer {
 public:
  Writer(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  std::string program() {
    out_ = "{% set ns = namespace(x=1) %}{% set a = 'ab' %}{% set b = [1, 'x', none] %}";
    statements(0);
    return std::move(out_);
  }

 private:
  static constexpr size_t kMaxBytes = 4096;
  static constexpr int kMaxDepth = 8;

  size_t choose(size_t count) { return at_ < size_ ? data_[at_++] % count : 0; }
  [[nodiscard]] bool is_full() const { return at_ >= size_ || out_.size() > kMaxBytes; }
  template <size_t kCount>
  void one_of(const std::array<std::string_view, kCount>& words) {
    out_ += words[choose(kCount)];
  }

  void statements(int depth) {
    const size_t count = depth == 0 ? SIZE_MAX : 1 + choose(3);
    for (size_t i = 0; i < count && !is_full(); ++i)
      statement(depth);
  }

  void tag(std::string_view begin, int depth) {
    out_ += begin;
    expression(depth);
    out_ += " %}";
  }

  void block(std::string_view end, int depth) {
    statements(depth + 1);
    out_ += end;
  }

  void statement(int depth) {
    if (depth >= kMaxDepth) {
      out_ += "t";
      return;
    }
    switch (choose(14)) {
      case 0: out_ += "t "; break;
      case 1:
      case 2:
        out_ += "{{ ";
        expression(depth);
        out_ += " }}";
        break;
      case 3: tag("{% set a = ", depth); break;
      case 4: tag("{% set ns.x = ", depth); break;
      case 5:
        out_ += "{% set ";
        one_of(kNames);
        out_ += '.';
        one_of(kFields);
        tag(" = ", depth);
        break;
      case 6:
        tag("{% if ", depth);
        block("{% else %}", depth);
        block("{% endif %}", depth);
        break;
      case 7:
      case 8: loop(depth); break;
      case 9:
        out_ += "{% macro m(a, b=";
        expression(depth);
        out_ += ") %}";
        block("{{ caller() if caller }}{{ varargs }}{{ kwargs }}{% endmacro %}", depth);
        break;
      case 10:
        out_ += "{% call m(";
        arguments(depth);
        out_ += ") %}";
        block("{% endcall %}", depth);
        break;
      case 11:
        out_ += "{% filter ";
        one_of(kFilters);
        out_ += " %}";
        block("{% endfilter %}", depth);
        break;
      case 12:
        out_ += "{% set b %}";
        block("{% endset %}", depth);
        break;
      default: tag("{% with a = ", depth); block("{% endwith %}", depth);
    }
  }

  void loop(int depth) {
    static constexpr std::array kTargets = {"a"sv, "a, b"sv, "loop"sv, "ns"sv};
    out_ += "{% for ";
    one_of(kTargets);
    out_ += " in ";
    operand(depth + 1);
    if (choose(3) == 1) {
      out_ += " if ";
      operand(depth + 1);
    }
    out_ += " %}";
    if (choose(4) == 1) out_ += choose(2) == 0 ? "{% break %}" : "{% if a %}{% continue %}{% endif %}";
    block("{% else %}", depth);
    block("{% endfor %}", depth);
  }

  void expression(int depth) {
    operand(depth + 1);
    for (size_t more = choose(4); more > 1 && !is_full(); --more) {
      one_of(kSigns);
      operand(depth + 1);
    }
    if (choose(8) == 1) {
      out_ += " if ";
      operand(depth + 1);
      out_ += " else ";
      operand(depth + 1);
    }
  }

  /// In parentheses, so that it can stand beside any sign.
  void operand(int depth) {
    out_ += '(';
    primary(depth);
    for (size_t more = choose(4); more > 0 && !is_full(); --more)
      postfix(depth);
    out_ += ')';
  }

  void primary(int depth) {
    if (depth >= kMaxDepth || is_full()) {
      one_of(kConstants);
      return;
    }
    switch (choose(12)) {
      case 0:
      case 1: one_of(kConstants); break;
      case 2:
      case 3:
      case 4: one_of(kNames); break;
      case 5: call("range", depth); break;
      case 6: call("namespace", depth); break;
      case 7: call("dict", depth); break;
      case 8: call("m", depth); break;
      case 9:
        out_ += '[';
        expression(depth + 1);
        out_ += ", ";
        expression(depth + 1);
        out_ += choose(2) == 0 ? "]" : "] | list";
        break;
      case 10:
        out_ += "{'x': ";
        expression(depth + 1);
        out_ += ", ";
        one_of(kConstants);
        out_ += ": ";
        expression(depth + 1);
        out_ += '}';
        break;
      default: out_ += choose(2) == 0 ? "not " : "-"; operand(depth + 1);
    }
  }

  void call(std::string_view name, int depth) {
    out_ += name;
    out_ += '(';
    arguments(depth);
    out_ += ')';
  }

  void arguments(int depth) {
    size_t count = choose(4);
    for (size_t i = 0; i < count && !is_full(); ++i) {
      expression(depth + 1);
      out_ += ", ";
    }
    switch (choose(6)) {
      case 1: out_ += "x="; break;
      case 2: out_ += "attribute="; break;
      case 3: out_ += "*"; break;
      case 4: out_ += "**"; break;
      default: break;
    }
    expression(depth + 1);
  }

  void postfix(int depth) {
    switch (choose(7)) {
      case 0:
        out_ += '.';
        one_of(kFields);
        break;
      case 1:
        out_ += '.';
        call(kFields[choose(kFields.size())], depth);
        break;
      case 2:
        out_ += '[';
        expression(depth + 1);
        out_ += ']';
        break;
      case 3:
        out_ += '[';
        if (choose(2) == 1) operand(depth + 1);
        out_ += ':';
        if (choose(2) == 1) operand(depth + 1);
        out_ += ':';
        if (choose(2) == 1) operand(depth + 1);
        out_ += ']';
        break;
      case 4:
        out_ += " | ";
        one_of(kFilters);
        break;
      case 5:
        out_ += " | ";
        call(kFilters[choose(kFilters.size())], depth);
        break;
      default: out_ += choose(2) == 0 ? " is " : " is not "; call(kTests[choose(kTests.size())], depth);
    }
  }

  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
  std::string out_;
};

/// What a template of strangers may end in.
void check_refused(const Error& error) {
  if (error.kind != ErrorKind::budget) return fuzz::check_refusal(error);
  DSPACK_CHECK(!error.message.empty(), "an error without a text");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const nlohmann::ordered_json kVariables = nlohmann::ordered_json::parse(
      R"({"messages": [{"role": "user", "content": "a b\nc"}, {"role": "tool", "content": ["x", {"x": [0, 1]}]}]})");
  constexpr Budget::Limits kLimits = {.steps = 300'000, .bytes = 4U << 20U};
  const std::string source = Writer(data, size).program();
  const auto program = runtime::jinja::Program::compile(source);
  if (!program) {
    check_refused(program.error());
    return 0;
  }
  Budget budget(kLimits);
  const auto text = program->render(kVariables, std::tm(), budget);
  DSPACK_CHECK(budget.steps() <= kLimits.steps, source);
  DSPACK_CHECK(budget.bytes() <= kLimits.bytes, source);
  Budget second(kLimits);
  const auto again = program->render(kVariables, std::tm(), second);
  DSPACK_CHECK(again.has_value() == text.has_value() && second.steps() == budget.steps(), source);
  if (!text) {
    check_refused(text.error());
    return 0;
  }
  DSPACK_CHECK(*again == *text, source);
  DSPACK_CHECK(runtime::is_valid_utf8(*text), source);
  return 0;
}
