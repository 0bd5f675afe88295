#include "runtime/text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "format/base/foreign_text.h"
#include "runtime/text/codepoint_set.h"
#include "runtime/text/json.h"
#include "runtime/text/json_fields.h"

namespace dspack::runtime {
namespace {

using nlohmann::json;

// ByteLevel's own pattern (GPT-2).
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Each step processes the whole text, and each pattern takes memory; the family's tokenizers have up to five.
constexpr unsigned kMaxSteps = 32;

Result<SplitBehavior> parse_behavior(std::string_view name) {
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  return Error{ErrorKind::invalid, fmt::format("unknown split behavior {}", quote(name))};
}

/// Joins every delimiter to the piece before it, unless that is a delimiter too.
std::vector<SplitSpan> merge_with_previous(const std::vector<SplitSpan>& pieces) {
  std::vector<SplitSpan> merged;
  bool previous_is_delimiter = false;
  for (const SplitSpan& piece : pieces) {
    if (piece.is_delimiter && !previous_is_delimiter && !merged.empty()) {
      merged.back().end = piece.end;
    } else {
      merged.push_back(piece);
    }
    previous_is_delimiter = piece.is_delimiter;
  }
  return merged;
}

/// The same in the other direction.
std::vector<SplitSpan> merge_with_next(const std::vector<SplitSpan>& pieces) {
  std::vector<SplitSpan> merged;
  bool next_is_delimiter = false;
  // NOLINTNEXTLINE(modernize-loop-convert): clang 14 cannot read libstdc++'s reverse view
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    if (piece->is_delimiter && !next_is_delimiter && !merged.empty()) {
      merged.back().begin = piece->begin;
    } else {
      merged.push_back(*piece);
    }
    next_is_delimiter = piece->is_delimiter;
  }
  std::reverse(merged.begin(), merged.end());
  return merged;
}

std::vector<SplitSpan> merge_equals(const std::vector<SplitSpan>& pieces) {
  std::vector<SplitSpan> merged;
  for (const SplitSpan& piece : pieces) {
    if (!merged.empty() && merged.back().is_delimiter == piece.is_delimiter) {
      merged.back().end = piece.end;
    } else {
      merged.push_back(piece);
    }
  }
  return merged;
}

std::vector<SplitSpan> without_delimiters(const std::vector<SplitSpan>& pieces) {
  std::vector<SplitSpan> kept;
  std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(kept),
               [](const SplitSpan& p) { return !p.is_delimiter; });
  return kept;
}

/// Matches and the text between them, in order.
std::vector<SplitSpan> cover(size_t text_bytes, const std::vector<Regex::Match>& matches, bool invert) {
  std::vector<SplitSpan> pieces;
  size_t done = 0;
  for (const Regex::Match& match : matches) {
    if (done != match.begin) pieces.push_back({done, match.begin, invert});
    pieces.push_back({match.begin, match.end, !invert});
    done = match.end;
  }
  if (done != text_bytes) pieces.push_back({done, text_bytes, invert});
  return pieces;
}

}  // namespace

std::vector<SplitSpan> apply_behavior(const std::vector<SplitSpan>& pieces, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::removed: return without_delimiters(pieces);
    case SplitBehavior::isolated: return pieces;
    case SplitBehavior::merged_with_previous: return merge_with_previous(pieces);
    case SplitBehavior::merged_with_next: return merge_with_next(pieces);
    case SplitBehavior::contiguous: return merge_equals(pieces);
  }
  return pieces;
}

Result<PreTokenizer> PreTokenizer::from_json(const json& value) {
  PreTokenizer pre_tokenizer;
  TRY(pre_tokenizer.add_steps(value));
  if (!pre_tokenizer.byte_level_) {
    return Error{ErrorKind::unsupported, "no ByteLevel step; only byte-level tokenizers are supported"};
  }
  return pre_tokenizer;
}

Result<PreTokenizer> PreTokenizer::from_pattern(std::string_view pattern, RegexDialect dialect) {
  PreTokenizer pre_tokenizer;
  TRY_ASSIGN(Regex compiled, Regex::compile(pattern, dialect));
  pre_tokenizer.steps_.emplace_back(Split{std::move(compiled), SplitBehavior::isolated, false});
  pre_tokenizer.byte_level_ = true;
  return pre_tokenizer;
}

Result<void> PreTokenizer::add_steps(const json& value) {
  if (++listed_ > kMaxSteps) {
    return Error{ErrorKind::unsupported, fmt::format("more than {} steps, one inside another counted", kMaxSteps)};
  }
  const Result<std::string> type_field = FieldsOf(value).required_text("type");
  if (!type_field) return type_field.error();
  const std::string& type = *type_field;
  if (type == "Sequence") return add_sequence(value);
  if (byte_level_) {
    return Error{ErrorKind::unsupported, fmt::format("step {} after ByteLevel", quote(type))};
  }
  if (type == "Split") return add_split(value);
  if (type == "Digits") return add_digits(value);
  if (type == "ByteLevel") return add_byte_level(value);
  return Error{ErrorKind::unsupported, fmt::format("step of type {}", quote(type))};
}

Result<void> PreTokenizer::add_sequence(const json& value) {
  TRY_ASSIGN(const json* steps, FieldsOf(value).array("pretokenizers"));
  if (steps == nullptr) return Error{ErrorKind::invalid, "\"pretokenizers\" is missing"};
  for (const json& step : *steps)
    TRY(add_steps(step));
  return {};
}

Result<void> PreTokenizer::add_split(const json& value) {
  TRY_ASSIGN(const json* pattern, FieldsOf(value).required_object("pattern"));
  TRY_ASSIGN(const auto literal, FieldsOf(*pattern).text("String"));
  TRY_ASSIGN(const auto expression, FieldsOf(*pattern).text("Regex"));
  if (literal.has_value() == expression.has_value()) {
    return Error{ErrorKind::invalid, "\"pattern\" must have one of \"String\" and \"Regex\""};
  }
  TRY_ASSIGN(const std::string behavior_name, FieldsOf(value).required_text("behavior"));
  TRY_ASSIGN(const SplitBehavior behavior, parse_behavior(behavior_name));
  TRY_ASSIGN(const bool invert, FieldsOf(value).flag("invert", false));
  TRY_ASSIGN(Regex compiled, Regex::compile(expression ? *expression : escape_pattern(*literal)));
  steps_.emplace_back(Split{std::move(compiled), behavior, invert});
  return {};
}

Result<void> PreTokenizer::add_digits(const json& value) {
  TRY_ASSIGN(const bool individual, FieldsOf(value).flag("individual_digits", false));
  TRY_ASSIGN(Regex digit, Regex::any_of(numeric_characters()));
  const auto behavior = individual ? SplitBehavior::isolated : SplitBehavior::contiguous;
  steps_.emplace_back(Split{std::move(digit), behavior, false});
  return {};
}

Result<void> PreTokenizer::add_byte_level(const json& value) {
  TRY_ASSIGN(const bool add_prefix_space, FieldsOf(value).flag("add_prefix_space", true));
  TRY_ASSIGN(const bool use_regex, FieldsOf(value).flag("use_regex", true));
  if (add_prefix_space) steps_.emplace_back(PrefixSpace{});
  if (use_regex) {
    TRY_ASSIGN(Regex pattern, Regex::compile(kByteLevelPattern));
    steps_.emplace_back(Split{std::move(pattern), SplitBehavior::isolated, false});
  }
  byte_level_ = true;
  return {};
}

Result<void> PreTokenizer::run(const Split& step, std::string_view word, WorkBudget& budget, Scratch& scratch) {
  TRY(step.pattern.find_all(word, budget, scratch.regex, scratch.matches));
  const std::vector<SplitSpan> pieces = apply_behavior(cover(word.size(), scratch.matches, step.invert), step.behavior);
  for (const SplitSpan& piece : pieces) {
    if (piece.begin != piece.end) scratch.next_words.push_back(word.substr(piece.begin, piece.end - piece.begin));
  }
  return {};
}

Result<void> PreTokenizer::split(std::string_view text, WorkBudget& budget, Scratch& scratch) const {
  scratch.prefixed.clear();
  scratch.words.clear();
  if (!text.empty()) scratch.words.push_back(text);
  for (const Step& step : steps_) {
    scratch.next_words.clear();
    for (const std::string_view word : scratch.words) {
      if (const auto* split = std::get_if<Split>(&step)) {
        TRY(run(*split, word, budget, scratch));
      } else {
        scratch.next_words.push_back(word.starts_with(' ') ? word : scratch.prefixed.emplace_back(" ").append(word));
      }
    }
    scratch.words.swap(scratch.next_words);
  }
  return {};
}

}  // namespace dspack::runtime
