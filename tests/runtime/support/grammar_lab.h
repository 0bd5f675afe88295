// Which texts a form may become: constraints for the small model's tokens, asked token by token.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/generate/constraint_compiler.h"
#include "runtime/text/tokenizer.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::test {

class GrammarLab {
 public:
  [[nodiscard]] std::unique_ptr<runtime::TokenConstraint> constraint(const runtime::OrderedJson& form) const {
    std::promise<Result<std::unique_ptr<runtime::TokenConstraint>>> promise;
    (*compiler_)->compile(form.dump(), "", [&](auto made) { promise.set_value(std::move(made)); }, {});
    auto made = promise.get_future().get();
    REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
    return *std::move(made);
  }
  /// Whether each token of the text may follow those before it, and then the end.
  [[nodiscard]] bool may_be(runtime::TokenConstraint& constraint, const std::string& text) const {
    const std::vector<uint32_t> tokens = *tokenizer_.encode(text, runtime::SpecialTokens::as_text);
    for (size_t count = 0; count <= tokens.size(); ++count) {
      const auto bits = constraint.allowed_after(std::span(tokens).first(count));
      if (!bits || !runtime::allows(*bits, count < tokens.size() ? tokens[count] : kEnd)) return false;
    }
    return true;
  }

 private:
  static constexpr uint32_t kEnd = 1;
  runtime::Tokenizer tokenizer_ = [] {
    std::ifstream file(tiny_folder() / "tokenizer.json", std::ios::binary);
    auto made = runtime::Tokenizer::from_json(std::string(std::istreambuf_iterator<char>(file), {}));
    REQUIRE(made);
    return *std::move(made);
  }();
  Result<std::unique_ptr<runtime::ConstraintCompiler>> compiler_ =
      runtime::ConstraintCompiler::make(tokenizer_, tokenizer_.vocab_size(), std::vector<uint32_t>{kEnd});
};

}  // namespace dspack::test
