#include "runtime/text/tokenizer_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "format/base/foreign_text.h"
#include "format/json.h"
#include "runtime/text/json.h"
#include "runtime/text/json_fields.h"

namespace dspack::runtime {
namespace {

using nlohmann::json;

Result<uint64_t> parse_id(const json& value) {
  if (!value.is_number_unsigned()) return Error{ErrorKind::invalid, "an id is not a whole number >= 0"};
  return value.get<uint64_t>();
}

/// A setting that must be off: absent, null, false, zero or an empty string.
Result<void> require_off(const json& model, const char* key) {
  const json* value = FieldsOf(model).find(key);
  if (value == nullptr) return {};
  const bool off = (value->is_boolean() && !value->get<bool>()) ||
                   (value->is_string() && value->get_ref<const std::string&>().empty()) ||
                   (value->is_number() && value->get<double>() == 0);
  if (off) return {};
  return Error{ErrorKind::unsupported, fmt::format("\"{}\" is set", key)};
}

Result<void> check_model(const json& model) {
  TRY_ASSIGN(const std::string type, FieldsOf(model).required_text("type"));
  if (type != "BPE") return Error{ErrorKind::unsupported, fmt::format("type {}, only BPE is", quote(type))};
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
    TRY(require_off(model, key));
  }
  return {};
}

Result<void> add_vocabulary(const json& vocab, Vocabulary& vocabulary) {
  for (const auto& [token, value] : vocab.items()) {
    const Result<uint64_t> id = parse_id(value);
    if (!id) return id.error().in(fmt::format("token {}", quote(token)));
    TRY(vocabulary.add(*id, token));
  }
  return {};
}

/// One merge in either form: "a b" or ["a", "b"].
Result<std::pair<std::string, std::string>> parse_merge(const json& value, size_t rank) {
  const Error wrong{ErrorKind::invalid, fmt::format("merge {} is neither \"a b\" nor [\"a\", \"b\"]", rank)};
  if (value.is_array()) {
    if (value.size() != 2 || !value[0].is_string() || !value[1].is_string()) return wrong;
    return std::pair(value[0].get<std::string>(), value[1].get<std::string>());
  }
  if (!value.is_string()) return wrong;
  const auto& text = value.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) return wrong;
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

Result<Bpe::Merges> parse_merges(const json& model) {
  TRY_ASSIGN(const json* list, FieldsOf(model).array("merges"));
  if (list == nullptr) return Error{ErrorKind::invalid, "\"merges\" is missing"};
  Bpe::Merges merges;
  for (const json& value : *list) {
    // The first line of merges.txt, which old converters kept.
    if (value.is_string() && value.get_ref<const std::string&>().starts_with("#version")) continue;
    TRY_ASSIGN(auto merge, parse_merge(value, merges.size()));
    merges.push_back(std::move(merge));
  }
  return merges;
}

Result<uint32_t> id_of_added_token(const json& value) {
  const json* id = FieldsOf(value).find("id");
  if (id == nullptr) return Error{ErrorKind::invalid, "\"id\" is missing"};
  TRY_ASSIGN(const uint64_t number, parse_id(*id));
  if (number > UINT32_MAX) return Error{ErrorKind::invalid, fmt::format("id {} is too large", number)};
  return static_cast<uint32_t>(number);
}

Result<AddedToken> added_token_with_id(const json& value) {
  TRY_ASSIGN(const uint32_t id, id_of_added_token(value));
  return parse_added_token(value, id);
}

/// The file sets the id of an added token, and it must agree with the vocabulary. (Hugging Face would silently choose
/// another id, which no published file relies on.)
Result<AddedTokens> add_added_tokens(const json* list, Vocabulary& vocabulary) {
  std::vector<AddedToken> tokens;
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    Result<AddedToken> token = added_token_with_id((*list)[i]);
    if (!token) return token.error().in(fmt::format("entry {}", i));
    TRY(vocabulary.add(token->id, token->content));
    if (token->special) vocabulary.mark_special(token->id);
    tokens.push_back(*std::move(token));
  }
  return AddedTokens::build(std::move(tokens));
}

Result<void> check_normalizer(const json& root) {
  const json* value = FieldsOf(root).find("normalizer");
  if (value == nullptr) return {};
  TRY_ASSIGN(const std::string type, FieldsOf(*value).required_text("type"));
  if (type != "Sequence") return Error{ErrorKind::unsupported, fmt::format("type {}", quote(type))};
  TRY_ASSIGN(const json* steps, FieldsOf(*value).array("normalizers"));
  if (steps == nullptr || steps->empty()) return {};
  TRY_ASSIGN(const std::string first, FieldsOf(steps->front()).required_text("type"));
  return Error{ErrorKind::unsupported, fmt::format("type {}", quote(first))};
}

Result<void> check_decoder(const json& root) {
  TRY_ASSIGN(const json* decoder, FieldsOf(root).required_object("decoder"));
  TRY_ASSIGN(const std::string type, FieldsOf(*decoder).required_text("type"));
  if (type == "ByteLevel") return {};
  return Error{ErrorKind::unsupported, fmt::format("type {}, only ByteLevel is", quote(type))};
}

template <class T>
Result<T> in_section(Result<T> result, std::string_view section) {
  if (!result) return result.error().in(section).in("tokenizer.json");
  return result;
}

Result<Bpe> parse_model(const json& model, const json& vocab, Vocabulary& vocabulary) {
  TRY(check_model(model));
  TRY_ASSIGN(const bool ignore_merges, FieldsOf(model).flag("ignore_merges", false));
  TRY(add_vocabulary(vocab, vocabulary));
  TRY_ASSIGN(const Bpe::Merges merges, parse_merges(model));
  return Bpe::build(vocabulary, merges, {.ignore_merges = ignore_merges});
}

}  // namespace

Result<AddedToken> parse_added_token(const json& value, uint32_t id) {
  AddedToken token;
  token.id = id;
  TRY_ASSIGN(token.content, FieldsOf(value).required_text("content"));
  TRY_ASSIGN(token.special, FieldsOf(value).flag("special", false));
  TRY_ASSIGN(token.single_word, FieldsOf(value).flag("single_word", false));
  TRY_ASSIGN(token.lstrip, FieldsOf(value).flag("lstrip", false));
  TRY_ASSIGN(token.rstrip, FieldsOf(value).flag("rstrip", false));
  TRY_ASSIGN(token.normalized, FieldsOf(value).flag("normalized", true));
  return token;
}

Result<TokenizerParts> parse_tokenizer_json(std::string_view text) {
  TRY_ASSIGN(const json root, parse_json(text, "tokenizer.json", format::kTokenizerDocument));
  TRY_ASSIGN(const json* model, in_section(FieldsOf(root).required_object("model"), "top level"));
  TRY_ASSIGN(const json* vocab, in_section(FieldsOf(*model).required_object("vocab"), "model"));
  TRY_ASSIGN(const json* added, in_section(FieldsOf(root).array("added_tokens"), "top level"));
  TRY_ASSIGN(const json* steps, in_section(FieldsOf(root).required_object("pre_tokenizer"), "top level"));

  Vocabulary vocabulary(vocab->size() + (added == nullptr ? 0 : added->size()));
  TRY_ASSIGN(Bpe bpe, in_section(parse_model(*model, *vocab, vocabulary), "model"));
  TRY_ASSIGN(AddedTokens added_tokens, in_section(add_added_tokens(added, vocabulary), "added_tokens"));
  TRY(in_section(check_normalizer(root), "normalizer"));
  TRY_ASSIGN(PreTokenizer pre_tokenizer, in_section(PreTokenizer::from_json(*steps), "pre_tokenizer"));
  TRY(in_section(check_decoder(root), "decoder"));
  return TokenizerParts{std::move(vocabulary), std::move(added_tokens), std::move(pre_tokenizer), std::move(bpe),
                        Slicing::none};
}

}  // namespace dspack::runtime
