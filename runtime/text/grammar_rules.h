// The rules of a grammar of JSON, in xgrammar's EBNF: JSON's own rules, each written once on first use, strings of
// bounded length, and the members of an object: their order, which are required, and how many there are.
//
// Each character of a bounded string is a state of the grammar's automaton, and a state costs xgrammar about 10 ms for
// a vocabulary of 129,000 tokens. So bounded strings consist of a few rules that all grammars share, for which xgrammar
// caches its results. They are read in two ways at once, in pieces that are offset by half a piece: when one way
// reaches the end of a piece, the other is in the middle of one and knows at once which tokens may follow.
// Threads: single-thread. Errors: invalid (an object of more states than kMaxObjectStates).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/result.h"

namespace dspack::runtime {

/// Expressions for a literal text, and for a regular expression.
[[nodiscard]] std::string literal(std::string_view text);
[[nodiscard]] std::string regex(std::string_view expression);
/// Repeats `part` `least` to `most` times; nullopt: without a maximum.
[[nodiscard]] std::string repeated(std::string_view part, uint64_t least, std::optional<uint64_t> most);

/// Alternatives of the expressions in `ways`, which is not empty.
[[nodiscard]] std::string alternatives(const std::vector<std::string>& ways);

class GrammarRules {
 public:
  /// All rules so far, one per line.
  [[nodiscard]] const std::string& text() const { return text_; }

  void add(std::string_view name, std::string_view body);
  /// Adds a rule under a new name, and returns the name, as the following functions do.
  std::string add(std::string_view body);
  /// A shared rule, added the first time: `name` always has this body.
  std::string once(const std::string& name, std::string_view body);
  /// Reserves `count` consecutive names, for rules that refer to each other. Returns the first number n; the name is
  /// "r" and n.
  size_t reserve(size_t count);

  /// White space of limited length (a model might never end it), and a comma within such white space.
  std::string space();
  std::string comma();
  std::string any();
  std::string string();
  std::string number();
  /// Strings of `least` to `most` characters; nullopt: without a maximum.
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

inline constexpr size_t kMaxObjectStates = 4000;  // members times counts of members

struct ObjectMembers {
  struct Member {
    std::string rule;  // name and value
    bool is_required = false;
  };
  std::vector<Member> listed = {};       // in this order
  std::optional<std::string> free = {};  // rule of a member with any other name
  uint64_t least = 0;                    // number of members
  std::optional<uint64_t> most = {};
};

/// The text around members and between them, as grammar expressions.
struct ObjectStyle {
  std::string begin, comma, end;
  std::string end_of_none;  // end of an object without members
};
[[nodiscard]] ObjectStyle json_object_style(GrammarRules& rules);

/// The rule for an object; nullopt: no object has such members.
[[nodiscard]] Result<std::optional<std::string>> object_rule(GrammarRules& rules, const ObjectStyle& style,
                                                             const ObjectMembers& members);

/// JSON strings other than `names`, with one spelling for each letter, so that no name can appear in another spelling;
/// nullopt: the names have more letters than kMaxPatternStates.
[[nodiscard]] std::optional<std::string> other_names_rule(GrammarRules& rules, const std::vector<std::string>& names);

}  // namespace dspack::runtime
