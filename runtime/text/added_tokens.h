// Added tokens: literals that are cut out of a text before all other steps.
//
// As Hugging Face's AddedVocabulary: scans from left to right, and at each position the longest literal wins; first the
// tokens with normalized = false on the whole text, then the others on the remaining pieces. `lstrip` and `rstrip`
// swallow the white space beside the token; `single_word` matches only if no word character is next to it.
// Threads: immutable after build, thread-safe. Lifetime: segments view the text given.
// Errors: invalid (an empty or overlong literal; a text that takes more steps than are left).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/codepoint_set.h"
#include "runtime/text/work_budget.h"

namespace dspack::runtime {

struct AddedToken {
  uint32_t id = 0;
  std::string content;
  bool special = false;  // may be left out by decoding
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
};

class AddedTokens {
 public:
  struct Segment {
    std::string_view text;
    std::optional<uint32_t> id;  // id of the added token; nullopt: ordinary text
  };

  [[nodiscard]] static Result<AddedTokens> build(std::vector<AddedToken> tokens);

  /// `text` is valid UTF-8. Empty pieces of text are omitted.
  [[nodiscard]] Result<std::vector<Segment>> split(std::string_view text, WorkBudget& budget) const;
  [[nodiscard]] bool contains(uint32_t id) const;
  /// The same text with a guard (guarded_text.h) after the first character of each literal, so that `split` does not
  /// find it. Literals of one character are found nevertheless.
  [[nodiscard]] std::string guarded(std::string_view text) const;

 private:
  /// A trie of bytes over the literals.
  class Tree {
   public:
    struct Hit {
      uint32_t token;  // index into tokens_
      size_t bytes;
    };
    void insert(std::string_view literal, uint32_t token);
    /// The longest literal at the start of `text`.
    [[nodiscard]] std::optional<Hit> longest(std::string_view text, WorkBudget& budget) const;

   private:
    static constexpr uint32_t kNone = UINT32_MAX;
    std::array<bool, 256> starts_{};
    std::unordered_map<uint64_t, uint32_t> children_;  // key: node << 8 | byte
    std::vector<uint32_t> tokens_{kNone};              // per node; node 0 is the root
  };

  AddedTokens() = default;
  [[nodiscard]] Result<void> split_by(const Tree& tree, std::string_view text, WorkBudget& budget,
                                      std::vector<Segment>& segments) const;
  [[nodiscard]] bool is_word(std::string_view character) const;
  [[nodiscard]] bool stands_alone(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  Tree as_is_;
  Tree normalized_;
  CodepointSet word_;  // filled only if a token is single_word
};

}  // namespace dspack::runtime
