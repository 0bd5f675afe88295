// The inputs of a template: names that it reads before it assigns them.
// Threads: thread-safe (a pure function). Time: proportional to the size of the program.
#pragma once

#include <set>
#include <string>

#include "runtime/text/jinja/ast.h"

namespace dspack::runtime::jinja {

/// Excludes the functions that every template has. A name that is assigned in only some branches counts as unassigned
/// after them.
[[nodiscard]] std::set<std::string, std::less<>> inputs_of(const Node& program);

}  // namespace dspack::runtime::jinja
