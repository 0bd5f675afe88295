// Splits text into the words that byte-pair encoding works on, by the steps of tokenizer.json.
//
// Supported: Sequence, Split (String or Regex, every behaviour, invert), Digits, and ByteLevel, which must come last
// because after it the text is bytes. Bytes are kept as bytes: the model would immediately undo their spelling as
// characters.
// Threads: immutable, thread-safe; a Scratch belongs to one thread. Lifetime: words view the text given or the scratch,
// until its next use. Errors: from_json: unsupported (a step or pattern, named), invalid; split: see Regex.
#pragma once

#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "format/base/result.h"
#include "runtime/text/regex.h"

namespace dspack::runtime {

/// Treatment of a delimiter; the names are Hugging Face's.
enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct SplitSpan {
  size_t begin;
  size_t end;
  bool is_delimiter;
};
/// Joins or drops pieces, which cover a text in order. Exposed for tests.
[[nodiscard]] std::vector<SplitSpan> apply_behavior(const std::vector<SplitSpan>& pieces, SplitBehavior behavior);

class PreTokenizer {
 public:
  struct Scratch {
    RegexScratch regex;
    std::vector<Regex::Match> matches;
    std::vector<std::string_view> words;
    std::vector<std::string_view> next_words;
    std::deque<std::string> prefixed;  // words with a space added in front
  };

  /// `value`: the member "pre_tokenizer".
  [[nodiscard]] static Result<PreTokenizer> from_json(const nlohmann::json& value);

  /// Every match of one pattern is a word, and so is the text between matches (tiktoken would drop it).
  [[nodiscard]] static Result<PreTokenizer> from_pattern(std::string_view pattern, RegexDialect dialect);

  /// Puts the words of valid UTF-8 `text` into scratch.words, in order, none empty.
  [[nodiscard]] Result<void> split(std::string_view text, WorkBudget& budget, Scratch& scratch) const;

 private:
  struct Split {
    Regex pattern;
    SplitBehavior behavior;
    bool invert;
  };
  struct PrefixSpace {};
  using Step = std::variant<Split, PrefixSpace>;

  PreTokenizer() = default;
  [[nodiscard]] Result<void> add_steps(const nlohmann::json& value);
  [[nodiscard]] Result<void> add_sequence(const nlohmann::json& value);
  [[nodiscard]] Result<void> add_split(const nlohmann::json& value);
  [[nodiscard]] Result<void> add_digits(const nlohmann::json& value);
  [[nodiscard]] Result<void> add_byte_level(const nlohmann::json& value);
  [[nodiscard]] static Result<void> run(const Split& step, std::string_view word, WorkBudget& budget, Scratch& scratch);

  std::vector<Step> steps_;
  unsigned listed_ = 0;  // steps in the description, including sequences
  bool byte_level_ = false;
};

}  // namespace dspack::runtime
