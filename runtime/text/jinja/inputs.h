// What a template can be told: the names that it reads before it has given them a value itself.
// Threads: thread-safe (a pure function). Time: by the size of the program.
#pragma once

#include <set>
#include <string>

#include "runtime/text/jinja/ast.h"

namespace dspack::runtime::jinja {

/// Without the functions that every template has. A name that has got a value in one branch alone counts as without
/// one behind it.
[[nodiscard]] std::set<std::string, std::less<>> inputs_of(const Node& program);

}  // namespace dspack::runtime::jinja
