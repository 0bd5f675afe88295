// A chat template as a Jinja program, set up as in transformers: trim_blocks, lstrip_blocks, the immutable sandbox,
// loop controls, `generation` blocks, tojson, raise_exception, strftime_now.
// Threads: immutable, thread-safe. Lifetime: owns its tree. Errors: compile: invalid (not Jinja), unsupported
// (statements that need other files), budget (too large); render: also failures of the template, with the line;
// cancelled.
#pragma once

#include <ctime>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "format/base/result.h"

namespace dspack::runtime::jinja {

struct Node;
class Budget;

struct Cost {
  uint64_t steps = 0;
  uint64_t bytes = 0;  // the most held at one time
};

class Program {
 public:
  [[nodiscard]] static Result<Program> compile(std::string_view source);

  /// `variables`: an object; the template sees its members by name. `now`: printed by strftime_now. `cost` is written
  /// even if the template fails.
  [[nodiscard]] Result<std::string> render(const nlohmann::ordered_json& variables, const std::tm& now,
                                           const std::stop_token& stop, Cost* cost = nullptr) const;
  /// Within the caller's budget, which outlives the call.
  [[nodiscard]] Result<std::string> render(const nlohmann::ordered_json& variables, const std::tm& now,
                                           Budget& budget) const;
  /// The names that it can be given: those that it reads before it assigns them.
  [[nodiscard]] const std::set<std::string, std::less<>>& inputs() const { return inputs_; }

 private:
  Program(std::shared_ptr<const Node> root, std::set<std::string, std::less<>> inputs)
      : root_(std::move(root)), inputs_(std::move(inputs)) {}
  std::shared_ptr<const Node> root_;
  std::set<std::string, std::less<>> inputs_;
};

}  // namespace dspack::runtime::jinja
