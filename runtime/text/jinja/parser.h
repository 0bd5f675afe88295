// Parses a template's tokens: statements here, expressions in expression_parser.h.
// Threads: thread-safe (a pure function). Errors: invalid (not Jinja; with the line), unsupported (statements that need
// other files), budget (nested too deeply).
#pragma once

#include <vector>

#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/lexer.h"

namespace dspack::runtime::jinja {

[[nodiscard]] Result<NodePtr> parse(std::vector<Token> tokens);

}  // namespace dspack::runtime::jinja
