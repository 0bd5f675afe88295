// A tokenizer.json small enough to read in a test, to be changed field by field.
#pragma once

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/text/tokenizer.h"
#include "runtime/text/vocabulary.h"

namespace dspack::runtime::testing {

/// Ids 0 to 255 are the bytes themselves, so that expected ids can be written as characters.
inline nlohmann::json small_tokenizer() {
  nlohmann::json vocab = nlohmann::json::object();
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char value = static_cast<char>(static_cast<unsigned char>(byte));
    vocab[spell_bytes({&value, 1})] = byte;
  }
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
}

/// Adds the token left + right with the next free id, and its merge behind the others. In the vocabulary's spelling.
inline uint32_t add_merge(nlohmann::json& tokenizer, const std::string& left, const std::string& right) {
  auto& vocab = tokenizer["model"]["vocab"];
  const auto id = static_cast<uint32_t>(vocab.size());
  vocab[left + right] = id;
  tokenizer["model"]["merges"].push_back(left + " " + right);
  return id;
}

inline void add_token(nlohmann::json& tokenizer, uint32_t id, const std::string& content,
                      const nlohmann::json& flags = nlohmann::json::object()) {
  nlohmann::json token = {{"id", id}, {"content", content}, {"special", false}, {"normalized", false}};
  token.update(flags);
  tokenizer["added_tokens"].push_back(token);
}

inline nlohmann::json split_step(const std::string& pattern, const std::string& behavior = "Isolated",
                                 bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", behavior}, {"invert", invert}};
}

inline Tokenizer load(const nlohmann::json& tokenizer) {
  Result<Tokenizer> loaded = Tokenizer::from_json(tokenizer.dump());
  REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error().message));
  return *std::move(loaded);
}

inline std::vector<uint32_t> encode(const Tokenizer& tokenizer, std::string_view text,
                                    SpecialTokens special = SpecialTokens::parse) {
  const auto ids = tokenizer.encode(text, special);
  REQUIRE(ids.has_value());
  return *ids;
}

}  // namespace dspack::runtime::testing
