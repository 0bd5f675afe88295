#include "runtime/text/tiktoken_file.h"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "format/base/foreign_text.h"
#include "format/foreign_file.h"
#include "format/json.h"
#include "runtime/text/json.h"
#include "runtime/text/json_fields.h"
#include "runtime/text/unicode.h"
#include "runtime/text/vocabulary.h"

namespace dspack::runtime {
namespace {

using nlohmann::json;

constexpr char kModelFile[] = "tiktoken.model";
constexpr char kConfigFile[] = "tokenizer_config.json";
constexpr uint32_t kSpecialTokens = 256;
constexpr size_t kMaxTokenBytes = 1024;     // bounds the work per token; the family's longest have about 100
constexpr uint64_t kMaxTokens = 1U << 24U;  // bounds the work per file

/// TikTokenTokenizer.pat_str of Kimi-K2's tokenization_kimi.py.
constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct RankedToken {
  std::string bytes;
  uint32_t rank;
};

/// "dGhl 257"
Result<RankedToken> parse_line(std::string_view line) {
  const size_t space = line.find(' ');
  const std::string_view number = space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
  uint32_t rank = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
  auto bytes = decode_base64(line.substr(0, space));
  if (!bytes || number.empty() || error != std::errc() || end != number.data() + number.size()) {
    return Error{ErrorKind::invalid, "not a token in base64, a space and a rank"};
  }
  if (bytes->empty() || bytes->size() > kMaxTokenBytes) {
    return Error{ErrorKind::invalid,
                 fmt::format("a token of {} bytes, allowed are 1 to {}", bytes->size(), kMaxTokenBytes)};
  }
  return RankedToken{*std::move(bytes), rank};
}

Result<std::vector<RankedToken>> parse_tokens(std::string_view model) {
  if (const std::string_view kind = format::foreign_kind(model); !kind.empty())
    return Error{ErrorKind::invalid, std::string(kind)};
  std::vector<RankedToken> tokens;
  for (size_t number = 1; !model.empty(); ++number) {
    std::string_view line = model.substr(0, model.find('\n'));
    model.remove_prefix(std::min(model.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    Result<RankedToken> token = parse_line(line);
    if (!token) return token.error().in(fmt::format("line {}", number));
    if (tokens.size() == kMaxTokens) return Error{ErrorKind::invalid, fmt::format("more than {} tokens", kMaxTokens)};
    tokens.push_back(*std::move(token));
  }
  if (tokens.empty()) return Error{ErrorKind::invalid, "no tokens"};
  return tokens;
}

Result<void> check_class(const json& config) {
  TRY_ASSIGN(const auto name, FieldsOf(config).text("tokenizer_class"));
  if (name == "TikTokenTokenizer") return {};
  return Error{ErrorKind::unsupported, fmt::format("\"tokenizer_class\" is {}; of those that read {} only "
                                                   "TikTokenTokenizer is known",
                                                   name ? quote(*name) : "missing", kModelFile)};
}

/// "added_tokens_decoder": {"163584": {"content": "[BOS]", ...}, ...}
Result<std::map<uint32_t, AddedToken>> named_tokens(const json& config) {
  std::map<uint32_t, AddedToken> tokens;
  if (FieldsOf(config).find("added_tokens_decoder") == nullptr) return tokens;
  TRY_ASSIGN(const json* decoder, FieldsOf(config).required_object("added_tokens_decoder"));
  for (const auto& [key, value] : decoder->items()) {
    uint32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      return Error{ErrorKind::invalid, fmt::format("added_tokens_decoder: {} is not an id", quote(key))};
    }
    Result<AddedToken> token = parse_added_token(value, id);
    if (!token) return token.error().in(fmt::format("added_tokens_decoder: {}", id));
    if (token->single_word || token->lstrip || token->rstrip) {
      return Error{ErrorKind::unsupported, fmt::format("added_tokens_decoder: {} has a flag that tiktoken does not "
                                                       "know",
                                                       id)};
    }
    token->normalized = false;
    tokens.insert_or_assign(id, *std::move(token));
  }
  return tokens;
}

/// All 256 special tokens.
Result<std::vector<AddedToken>> special_tokens(const json& config, uint32_t first_id) {
  TRY_ASSIGN(const auto named, named_tokens(config));
  const uint32_t end = first_id + kSpecialTokens;
  for (const auto& [id, token] : named) {
    if (id >= first_id && id < end) continue;
    return Error{ErrorKind::invalid,
                 fmt::format("added_tokens_decoder: {} is not one of the ids {} to {} after the vocabulary", id,
                             first_id, end - 1)};
  }
  std::vector<AddedToken> tokens;
  std::set<std::string> contents;
  for (uint32_t id = first_id; id < end; ++id) {
    const auto found = named.find(id);
    tokens.push_back(found != named.end() ? found->second
                                          : AddedToken{.id = id, .content = fmt::format("<|reserved_token_{}|>", id)});
    if (!contents.insert(tokens.back().content).second) {
      return Error{ErrorKind::invalid,
                   fmt::format("added_tokens_decoder: {} has two ids", quote(tokens.back().content))};
    }
  }
  return tokens;
}

template <class T>
Result<T> in_file(Result<T> result, std::string_view file) {
  if (!result) return result.error().in(file);
  return result;
}

Result<void> add_tokens(std::string_view model, Vocabulary& vocabulary) {
  TRY_ASSIGN(const std::vector<RankedToken> tokens, parse_tokens(model));
  vocabulary = Vocabulary(tokens.size() + kSpecialTokens);
  for (const RankedToken& token : tokens)
    TRY(vocabulary.add(token.rank, spell_bytes(token.bytes)));
  if (vocabulary.size() == tokens.size()) return {};
  return Error{ErrorKind::invalid, fmt::format("the ranks are not 0 to {}", tokens.size() - 1)};
}

}  // namespace

Result<TokenizerParts> parse_tiktoken(std::string_view model, std::string_view tokenizer_config_json) {
  TRY_ASSIGN(const json config, parse_json(tokenizer_config_json, kConfigFile, format::kSettingsDocument));
  TRY(in_file(check_class(config), kConfigFile));
  Vocabulary vocabulary(0);
  TRY(in_file(add_tokens(model, vocabulary), kModelFile));
  Bpe bpe = Bpe::build_ranked(vocabulary);
  TRY_ASSIGN(auto specials, in_file(special_tokens(config, vocabulary.size()), kConfigFile));
  for (const AddedToken& token : specials) {
    TRY(in_file(vocabulary.add_text(token.id, token.content), kConfigFile));
    if (token.special) vocabulary.mark_special(token.id);
  }
  TRY_ASSIGN(AddedTokens added_tokens, in_file(AddedTokens::build(std::move(specials)), kConfigFile));
  TRY_ASSIGN(PreTokenizer pre_tokenizer, PreTokenizer::from_pattern(kKimiPattern, RegexDialect::rust));
  return TokenizerParts{std::move(vocabulary), std::move(added_tokens), std::move(pre_tokenizer), std::move(bpe),
                        Slicing::long_runs};
}

std::optional<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=')
    ++padding;
  std::string bytes;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool padded = i >= text.size() - padding;
    const size_t digit = padded ? 0 : kDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = (bits << 6U) | static_cast<uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (const unsigned shift : {16U, 8U, 0U})
      bytes.push_back(static_cast<char>(static_cast<unsigned char>(bits >> shift)));
    bits = 0;
  }
  bytes.erase(bytes.size() - padding);
  return bytes;
}

namespace {

constexpr size_t kMaxSliceCharacters = 400'000;
constexpr size_t kMaxRunCharacters = 25'000;

}  // namespace

std::vector<std::string_view> slice_long_runs(std::string_view text) {
  std::vector<std::string_view> slices;
  size_t begin = 0;
  size_t block_characters = 0;  // in the current block of 400,000, which may have several slices
  size_t run_characters = 0;
  bool run_is_space = false;
  for (size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, utf8_length(text[at]));
    const bool is_space = is_python_space(decode_utf8_character(character));
    if (block_characters == kMaxSliceCharacters) block_characters = 0;
    const bool new_block = block_characters == 0;
    if (new_block || is_space != run_is_space) run_characters = 0;
    if ((new_block || run_characters == kMaxRunCharacters) && begin < at) {
      slices.push_back(text.substr(begin, at - begin));
      begin = at;
      run_characters = 0;
    }
    run_is_space = is_space;
    ++run_characters;
    ++block_characters;
    at += character.size();
  }
  if (begin < text.size()) slices.push_back(text.substr(begin));
  return slices;
}

}  // namespace dspack::runtime
