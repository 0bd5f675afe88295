// Grammar rules for the members of an object: their order, which are required, and how many there are.
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

inline constexpr size_t kMostObjectStates = 4000;  // members times counts of members

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
/// nullopt: the names have more letters than kMostPatternStates.
[[nodiscard]] std::optional<std::string> other_names_rule(GrammarRules& rules, const std::vector<std::string>& names);

}  // namespace dspack::runtime
