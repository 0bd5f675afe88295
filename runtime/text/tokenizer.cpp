#include "runtime/text/tokenizer.h"

#include <fmt/format.h>
#include <algorithm>
#include <utility>

#include "runtime/text/guarded_text.h"
#include "runtime/text/tiktoken_file.h"
#include "runtime/text/unicode.h"

namespace dspack::runtime {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // positions in a word are 32 bits wide
// A pattern's matches may outnumber words: digits, for example, are matched one by one and may stay together.
constexpr uint64_t kWordsPerToken = 4;

}  // namespace

struct Tokenizer::Scratch {
  const EncodingLimits& limits;
  WorkBudget budget;
  PreTokenizer::Scratch words;
  BpeScratch bpe;
};

Result<Tokenizer> Tokenizer::from_json(std::string_view tokenizer_json) {
  TRY_ASSIGN(TokenizerParts parts, parse_tokenizer_json(tokenizer_json));
  return Tokenizer(std::move(parts));
}

Result<Tokenizer> Tokenizer::from_tiktoken(std::string_view model, std::string_view tokenizer_config_json) {
  TRY_ASSIGN(TokenizerParts parts, parse_tiktoken(model, tokenizer_config_json));
  return Tokenizer(std::move(parts));
}

Tokenizer::Tokenizer(TokenizerParts parts) : parts_(std::move(parts)) {
  for (uint32_t id = 0; id < vocab_size(); ++id)
    longest_token_bytes_ = std::max(longest_token_bytes_, token_bytes(id).size());
}

Result<std::vector<uint32_t>> Tokenizer::encode(std::string_view text, SpecialTokens special,
                                                const EncodingLimits& limits) const {
  if (text.size() > kMaxTextBytes) {
    return Error{ErrorKind::invalid, fmt::format("text of {} bytes, at most {}", text.size(), kMaxTextBytes)};
  }
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = to_valid_utf8(text);
    text = repaired;
  }
  const uint64_t most_words =
      limits.most_tokens > UINT64_MAX / kWordsPerToken ? UINT64_MAX : limits.most_tokens * kWordsPerToken;
  Scratch scratch{.limits = limits, .budget = WorkBudget(text.size(), most_words, limits.stop), .words = {}, .bpe = {}};
  scratch.bpe.stop = limits.stop;
  std::vector<uint32_t> ids;
  const std::vector<std::string_view> slices =
      parts_.slicing == Slicing::none ? std::vector<std::string_view>{text} : slice_long_runs(text);
  for (const std::string_view slice : slices) {
    const auto encoded = encode_slice(slice, special, scratch, ids);
    if (limits.stop.stop_requested()) {
      return Error{ErrorKind::cancelled, "nobody waits for this text's tokens any more"};
    }
    TRY(encoded);
    if (ids.size() > limits.most_tokens) return ids;
  }
  if (scratch.budget.is_cut()) {
    return Error{ErrorKind::invalid, fmt::format("the text has more than {} words", most_words)};
  }
  return ids;
}

Result<void> Tokenizer::encode_slice(std::string_view text, SpecialTokens special, Scratch& scratch,
                                     std::vector<uint32_t>& ids) const {
  std::vector<AddedTokens::Segment> segments{{text, std::nullopt}};
  if (special != SpecialTokens::as_text) {
    TRY_ASSIGN(segments, parts_.added_tokens.split(text, scratch.budget));
  }
  const auto are_enough = [&] { return ids.size() > scratch.limits.most_tokens; };
  for (const AddedTokens::Segment& segment : segments) {
    if (are_enough()) return {};
    if (segment.id) {
      ids.push_back(*segment.id);
      continue;
    }
    const std::string plain = special == SpecialTokens::guarded ? unguarded(segment.text) : std::string();
    TRY(parts_.pre_tokenizer.split(special == SpecialTokens::guarded ? plain : segment.text, scratch.budget,
                                   scratch.words));
    for (const std::string_view word : scratch.words.words) {
      if (are_enough()) return {};
      TRY(parts_.bpe.encode(word, scratch.bpe, ids));
    }
  }
  return {};
}

std::string Tokenizer::decode(std::span<const uint32_t> ids, SpecialOutput special) const {
  Detokenizer detokenizer(*this, special);
  std::string text;
  for (const uint32_t id : ids)
    text += detokenizer.push(id);
  text += detokenizer.flush();
  return text;
}

std::string Detokenizer::push(uint32_t id) {
  if (special_ == SpecialOutput::skip && tokenizer_->is_special(id)) return {};
  rest_ += tokenizer_->token_bytes(id);
  std::string text;
  std::string_view bytes = rest_;
  while (!bytes.empty()) {
    const Utf8Unit unit = first_utf8_unit(bytes);
    if (unit.kind == Utf8Unit::Kind::incomplete) break;
    text += unit.kind == Utf8Unit::Kind::character ? bytes.substr(0, unit.bytes) : kReplacementCharacter;
    bytes.remove_prefix(unit.bytes);
  }
  rest_ = std::string(bytes);
  return text;
}

std::string Detokenizer::flush() {
  const bool incomplete = !rest_.empty();
  rest_.clear();
  return std::string(incomplete ? kReplacementCharacter : std::string_view());
}

}  // namespace dspack::runtime
