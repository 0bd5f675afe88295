// The members of an object as rules of a grammar: which may follow which, which must be there, and how many.
// Threads: single-thread. Errors: invalid (more states than kMostObjectStates).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/grammar_rules.h"

namespace dspack::runtime {

inline constexpr size_t kMostObjectStates = 4000;  // members, times how many of them there are

struct ObjectMembers {
  struct Member {
    std::string rule;  // its name and its value
    bool is_required = false;
  };
  std::vector<Member> listed = {};       // in the order in which they come
  std::optional<std::string> free = {};  // one of any other name
  uint64_t least = 0;                    // members
  std::optional<uint64_t> most = {};
};

/// What is written around members and between them, as expressions of a grammar.
struct ObjectStyle {
  std::string begin, comma, end;
  std::string end_of_none;  // behind no member
};
[[nodiscard]] ObjectStyle json_object_style(GrammarRules& rules);

/// The rule of an object; nullopt: no object has such members.
[[nodiscard]] Result<std::optional<std::string>> object_rule(GrammarRules& rules, const ObjectStyle& style,
                                                             const ObjectMembers& members);

/// JSON strings that are none of `names`, each letter written in one way, so that no name comes in a second spelling;
/// nullopt: the names have more letters than kMostPatternStates.
[[nodiscard]] std::optional<std::string> other_names_rule(GrammarRules& rules, const std::vector<std::string>& names);

}  // namespace dspack::runtime
