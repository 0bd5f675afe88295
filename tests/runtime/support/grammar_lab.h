// Which texts a form may become: constraints for the small model's tokens, asked token by token.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/generate/constraint_compiler.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/tool_syntax.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::test {

struct GrammarLab {
  static constexpr uint32_t kEnd = 1;
  runtime::Tokenizer tokenizer = [] {
    std::ifstream file(tiny_folder() / "tokenizer.json", std::ios::binary);
    auto made = runtime::Tokenizer::from_json(std::string(std::istreambuf_iterator<char>(file), {}));
    REQUIRE(made);
    return *std::move(made);
  }();
  uint32_t vocab = tokenizer.vocab_size();
  Result<std::unique_ptr<runtime::ConstraintCompiler>> compiler =
      runtime::ConstraintCompiler::make(tokenizer, vocab, std::vector<uint32_t>{kEnd});

  [[nodiscard]] Result<std::unique_ptr<runtime::TokenConstraint>> compile(const runtime::OrderedJson& form) const {
    std::promise<Result<std::unique_ptr<runtime::TokenConstraint>>> promise;
    (*compiler)->compile(form.dump(), "", [&](auto made) { promise.set_value(std::move(made)); }, {});
    return promise.get_future().get();
  }
  [[nodiscard]] std::unique_ptr<runtime::TokenConstraint> constraint(const runtime::OrderedJson& form) const {
    auto made = compile(form);
    REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
    return *std::move(made);
  }
  [[nodiscard]] std::vector<uint32_t> allowed(runtime::TokenConstraint& constraint,
                                              std::span<const uint32_t> answer) const {
    const auto bits = constraint.allowed_after(answer);
    REQUIRE_MESSAGE(bits, (bits ? "" : bits.error().message));
    std::vector<uint32_t> tokens;
    for (uint32_t token = 0; token < vocab; ++token)
      if (runtime::allows(*bits, token)) tokens.push_back(token);
    return tokens;
  }
  /// Tokens as the masks allow them, drawn by `random`, up to the end token or `most`.
  [[nodiscard]] std::vector<uint32_t> walk(runtime::TokenConstraint& constraint, std::mt19937& random,
                                           size_t most) const {
    std::vector<uint32_t> answer;
    while (answer.size() < most) {
      const std::vector<uint32_t> tokens = allowed(constraint, answer);
      REQUIRE(!tokens.empty());
      // What can end does so at once: strings would go on for long.
      const auto closing = std::ranges::find_if(tokens, [&](uint32_t token) {
        const std::string_view text = tokenizer.token_bytes(token);
        return token == kEnd || ((text == "\"" || text == "}" || text == "]") && random() % 3 == 0);
      });
      answer.push_back(closing != tokens.end() ? *closing : tokens[random() % tokens.size()]);
      if (answer.back() == kEnd) break;
    }
    return answer;
  }
  [[nodiscard]] std::string text(std::span<const uint32_t> answer) const {
    return tokenizer.decode(answer, runtime::SpecialOutput::skip);
  }
  /// Whether each token of the text may follow those before it, and then the end.
  [[nodiscard]] bool may_be(runtime::TokenConstraint& constraint, const std::string& whole) const {
    const std::vector<uint32_t> tokens = *tokenizer.encode(whole, runtime::SpecialTokens::as_text);
    for (size_t count = 0; count <= tokens.size(); ++count) {
      const auto bits = constraint.allowed_after(std::span(tokens).first(count));
      if (!bits || !runtime::allows(*bits, count < tokens.size() ? tokens[count] : kEnd)) return false;
    }
    return true;
  }
};

[[nodiscard]] inline bool is_there() {
  if (runtime::ConstraintCompiler::is_available()) return true;
  MESSAGE("SKIPPED: this build has no xgrammar (scripts/xgrammar)");
  return false;
}

/// The form of JSON that is of this schema.
[[nodiscard]] inline runtime::OrderedJson json_form(const runtime::OrderedJson& schema) {
  const auto form = runtime::schema_form(schema);
  REQUIRE_MESSAGE(form, (form ? "" : form.error().message));
  return *form;
}

}  // namespace dspack::test
