#include "runtime/text/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/text/codepoint_set.h"
#include "runtime/text/guarded_text.h"
#include "runtime/text/json.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

constexpr size_t kMaxContentBytes = 4096;  // bounds the work per byte of text; the family's longest have 40

}  // namespace

void AddedTokens::Tree::insert(std::string_view literal, uint32_t token) {
  starts_[static_cast<unsigned char>(literal[0])] = true;
  uint32_t node = 0;
  for (const char c : literal) {
    const uint64_t key = (uint64_t{node} << 8) | static_cast<unsigned char>(c);
    const auto [child, added] = children_.try_emplace(key, static_cast<uint32_t>(tokens_.size()));
    if (added) tokens_.push_back(kNone);
    node = child->second;
  }
  tokens_[node] = token;
}

std::optional<AddedTokens::Tree::Hit> AddedTokens::Tree::longest(std::string_view text, WorkBudget& budget) const {
  if (text.empty() || !starts_[static_cast<unsigned char>(text[0])]) return std::nullopt;
  std::optional<Hit> hit;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!budget.spend(1)) return std::nullopt;
    const auto child = children_.find((uint64_t{node} << 8) | static_cast<unsigned char>(text[i]));
    if (child == children_.end()) break;
    node = child->second;
    if (tokens_[node] != kNone) hit = Hit{tokens_[node], i + 1};
  }
  return hit;
}

Result<AddedTokens> AddedTokens::build(std::vector<AddedToken> tokens) {
  AddedTokens added;
  added.tokens_ = std::move(tokens);
  for (uint32_t i = 0; i < added.tokens_.size(); ++i) {
    const AddedToken& token = added.tokens_[i];
    if (token.content.empty() || token.content.size() > kMaxContentBytes) {
      return Error{ErrorKind::invalid, fmt::format("added token {} has {} bytes, allowed are 1 to {}", token.id,
                                                   token.content.size(), kMaxContentBytes)};
    }
    (token.normalized ? added.normalized_ : added.as_is_).insert(token.content, i);
    if (token.single_word && added.word_.ranges().empty()) added.word_ = word_characters();
  }
  return added;
}

bool AddedTokens::is_word(std::string_view character) const {
  return !character.empty() && word_.contains(decode_utf8_character(character));
}

bool AddedTokens::stands_alone(std::string_view text, size_t begin, size_t end) const {
  const std::string_view after = text.substr(end);
  return !is_word(last_character(text.substr(0, begin))) && !is_word(after.substr(0, first_utf8_unit(after).bytes));
}

Result<void> AddedTokens::split_by(const Tree& tree, std::string_view text, WorkBudget& budget,
                                   std::vector<Segment>& segments) const {
  size_t done = 0;  // may run ahead of `at`: white space that rstrip swallowed can begin another token
  size_t at = 0;
  while (at < text.size() && !budget.is_enough(segments.size())) {
    const auto hit = tree.longest(text.substr(at), budget);
    if (!hit) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[hit->token];
    size_t begin = at;
    size_t end = at + hit->bytes;
    at = end;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) {
      // Not beyond the end of the last token.
      const size_t first = std::min(done, begin);
      begin = std::max(begin - trailing_white_space(text.substr(first, begin - first)), done);
    }
    if (token.rstrip) {
      const size_t spaces = leading_white_space(text.substr(end));
      end += spaces;
      if (!budget.pass(spaces)) break;
    }
    if (done < begin) segments.push_back({text.substr(done, begin - done), std::nullopt});
    segments.push_back({begin < end ? text.substr(begin, end - begin) : std::string_view(), token.id});
    done = end;
  }
  if (budget.spent() == budget.all()) {
    return Error{ErrorKind::invalid,
                 fmt::format("to look for the tokenizer's added tokens takes too long on this text: "
                             "more than the {} steps that the whole text may take",
                             budget.all())};
  }
  if (done < text.size()) segments.push_back({text.substr(done), std::nullopt});
  return {};
}

bool AddedTokens::contains(uint32_t id) const {
  return std::ranges::any_of(tokens_, [id](const AddedToken& token) { return token.id == id; });
}

std::string AddedTokens::guarded(std::string_view text) const {
  std::string guarded;
  WorkBudget budget(text.size());
  while (!text.empty()) {
    if (text.starts_with(kGuard)) guarded += kGuard;
    const size_t character = first_utf8_unit(text).bytes;
    guarded += text.substr(0, character);
    // If the steps are used up, any character may begin one.
    const bool may_begin = as_is_.longest(text, budget) || normalized_.longest(text, budget);
    if (may_begin || budget.spent() == budget.all()) guarded += kGuard;
    text.remove_prefix(character);
  }
  return guarded;
}

Result<std::vector<AddedTokens::Segment>> AddedTokens::split(std::string_view text, WorkBudget& budget) const {
  std::vector<Segment> first;
  TRY(split_by(as_is_, text, budget, first));
  std::vector<Segment> segments;
  for (const Segment& segment : first) {
    if (segment.id) {
      segments.push_back(segment);
    } else {
      TRY(split_by(normalized_, segment.text, budget, segments));
    }
  }
  return segments;
}

}  // namespace dspack::runtime
