#include "runtime/text/jinja/inputs.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "runtime/text/jinja/evaluator.h"

namespace dspack::runtime::jinja {
namespace {

/// Visits a program in order. Assigned names are kept as a list, whose end is undone when a scope ends: so the time
/// does not depend on the number of names in scope.
class InputReader {
 public:
  std::set<std::string, std::less<>> run(const Node& program) {
    read(program);
    return std::move(inputs_);
  }

 private:
  void bind(std::string_view name) {
    ++bound_[name];
    names_.push_back(name);
  }

  void undo(size_t count) {
    for (; names_.size() > count; names_.pop_back())
      --bound_[names_.back()];
  }

  void bind_target(const Node& target) {
    if (target.kind == NodeKind::name) return bind(target.text);
    if (target.kind == NodeKind::tuple || target.kind == NodeKind::list) {
      for (const NodePtr& part : target.kids)
        bind_target(*part);
    } else {
      read(target);  // a field of a namespace
    }
  }

  void read(const NodePtr& node) {
    if (node) read(*node);
  }

  void read(const Node& node) {
    const size_t outside = names_.size();
    switch (node.kind) {
      case NodeKind::name: return read_name(node.text);
      case NodeKind::branch: return read_branch(node);
      case NodeKind::loop:
        read(node.kids[1]);
        bind_target(*node.kids[0]);
        bind("loop");
        read(node.kids[2]);
        read(node.kids[3]);
        undo(outside);
        read(node.kids[4]);
        return undo(outside);
      case NodeKind::set: read(node.kids[1]); return bind_target(*node.kids[0]);
      case NodeKind::set_block:
        read(node.kids[2]);
        undo(outside);
        read(node.kids[1]);
        return bind_target(*node.kids[0]);
      case NodeKind::macro: read_macro(node); return bind(node.text);
      case NodeKind::call_block: read_macro(*node.kids[0]); return read(node.kids[1]);
      case NodeKind::filter_block:
        read(node.kids[1]);
        undo(outside);
        return read(node.kids[0]);
      case NodeKind::with:
        for (size_t i = 0; i + 1 < node.kids.size(); i += 2) {
          read(node.kids[i + 1]);
          bind_target(*node.kids[i]);
        }
        read(node.kids.back());
        return undo(outside);
      default:
        for (const NodePtr& kid : node.kids)
          read(kid);
    }
  }

  void read_name(const std::string& name) {
    if (const auto found = bound_.find(name); found != bound_.end() && found->second > 0) return;
    if (std::ranges::find(kFunctions, name) == kFunctions.end()) inputs_.insert(name);
  }

  // A name that every branch assigns is assigned afterwards.
  void read_branch(const Node& node) {
    const size_t outside = names_.size();
    const bool has_else = node.kids.size() % 2 == 1;
    std::map<std::string_view, size_t> branches;  // number of branches that assign the name
    size_t count = 0;
    for (size_t i = 0; i < node.kids.size(); i += 2) {
      const bool is_else = i + 1 == node.kids.size();
      if (!is_else) read(node.kids[i]);
      read(node.kids[is_else ? i : i + 1]);
      ++count;
      if (has_else) {
        const std::set<std::string_view> here(names_.begin() + static_cast<std::ptrdiff_t>(outside), names_.end());
        for (const std::string_view name : here)
          ++branches[name];
      }
      undo(outside);
    }
    for (const auto& [name, in] : branches)
      if (in == count) bind(name);
  }

  void read_macro(const Node& macro) {
    const size_t outside = names_.size();
    bind(macro.text);  // it may call itself
    for (const NodePtr& parameter : macro.kids[0]->kids) {
      read(parameter->kids[0]);
      bind(parameter->text);
    }
    for (const std::string_view given : {"caller", "varargs", "kwargs"})
      bind(given);
    read(macro.kids[1]);
    undo(outside);
  }

  std::set<std::string, std::less<>> inputs_;
  std::map<std::string_view, size_t> bound_;
  std::vector<std::string_view> names_;
};

}  // namespace

std::set<std::string, std::less<>> inputs_of(const Node& program) {
  return InputReader().run(program);
}

}  // namespace dspack::runtime::jinja
