// The rules of a grammar of JSON, in xgrammar's EBNF: those of JSON itself, each written once where it is asked for,
// and strings of bounded length.
//
// A character of a bounded string is a state of the grammar's automaton, and each state costs the library some 10 ms of
// a vocabulary of 129,000 tokens. So bounded strings are made of a few rules that all grammars share, of which the
// library keeps what it has computed, and are read in two ways at once, in pieces whose ends lie half a piece apart:
// where one way comes to the end of its piece the other one is amid its own, and tells at once which tokens may follow.
// Threads: single-thread. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace dspack::runtime {

/// A text as it stands, and what matches a regular expression.
[[nodiscard]] std::string literal(std::string_view text);
[[nodiscard]] std::string regex(std::string_view expression);
/// What is `least` to `most` times there; nullopt: any number of times.
[[nodiscard]] std::string repeated(std::string_view part, uint64_t least, std::optional<uint64_t> most);

/// One of these expressions, at least one.
[[nodiscard]] std::string alternatives(const std::vector<std::string>& ways);

class GrammarRules {
 public:
  /// All rules so far, each in a line.
  [[nodiscard]] const std::string& text() const { return text_; }

  void add(std::string_view name, std::string_view body);
  /// A rule under a name that no other has. Returns the name, as the next ones do.
  std::string add(std::string_view body);
  /// A rule under a name that has this body wherever it is asked for.
  std::string once(const std::string& name, std::string_view body);
  /// So many names in a row, for rules that lead to each other. Returns the first one's number; the name is "r" and it.
  size_t reserve(size_t count);

  /// As much white space as is allowed anywhere (a model that likes it would never end), and a comma within such.
  std::string space();
  std::string comma();
  std::string any();
  std::string string();
  std::string number();
  /// Strings of `least` to `most` characters; nullopt: of any length.
  std::string string(uint64_t least, std::optional<uint64_t> most);

 private:
  std::string piece(size_t bits);
  std::string shorter(size_t bits);
  std::string exactly(uint64_t length);
  std::string at_most(uint64_t length);
  std::string pieces(uint64_t length);

  std::string text_;
  size_t count_ = 0;
  std::set<std::string> shared_;
};

}  // namespace dspack::runtime
