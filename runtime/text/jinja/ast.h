// A parsed template: a tree of nodes. The comment of each kind lists its `kids` in order.
// Threads: immutable once parsed, thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace dspack::runtime::jinja {

struct Node {
  enum class Kind {
    // Statements.
    block,   // statements
    data,    // `text` unchanged
    print,   // an expression
    branch,  // condition, block, condition, block, ..., optionally the block of else
    loop,    // target, iterable, condition or null, body, block of else or null
    break_loop,
    continue_loop,
    set,           // target, value
    set_block,     // target, a filter without value or null, body
    macro,         // parameters, body; `text` is its name
    call_block,    // the block as a macro, the call
    filter_block,  // a filter without value, body
    with,          // targets and values in turn, then the body
    // Expressions.
    constant,  // `value`
    name,      // `text`
    tuple,
    list,
    dict,         // key, value, ...
    attribute,    // object; `text`
    item,         // object, key
    slice,        // start, end, step; each may be null
    call,         // callee, arguments
    filter,       // value or null (in a block), arguments; `text` is its name
    test,         // value, arguments; `text` is its name
    keyword,      // an argument by name: `text`, value
    unpack_list,  // an argument *value
    unpack_dict,  // an argument **value
    parameter,    // default or null; `text` is its name
    unary,        // operand; `text` is the sign
    binary,       // left, right; `text`
    both,         // and
    either,       // or
    join,         // operands of ~
    comparison,   // first operand, then a `compare_to` for each
    compare_to,   // operand; `text` is the sign
    choice        // value, condition, other value or null
  };
  Kind kind = Kind::block;
  uint32_t line = 1;
  uint32_t depth = 1;  // depth of the subtree
  std::string text = {};
  Value value = {};
  std::vector<std::unique_ptr<Node>> kids = {};
};

using NodeKind = Node::Kind;
using NodePtr = std::unique_ptr<Node>;

}  // namespace dspack::runtime::jinja
