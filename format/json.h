// JSON from outside, read strictly: duplicate keys, excessive depth and trailing bytes are errors. Each kind of
// document has bounds: bytes of text, and values, where every key, string, number, list and object counts as one.
// Values are counted before they are kept, since a JSON tree takes some 20 to 100 bytes per value, however short its
// text is. Together the bounds limit the memory of any document to less than 400 MB.
// Threads: thread-safe (pure functions, constants). Errors: invalid, with the place; budget (beyond the bounds of the
// kind of document), from parse_json and from reading.
//
// Real sizes: V3's packed repository has 15,000 files and 91,991 tensors; its manifest has 15 MB and 0.4 million
// values, its index 9 MB and 184,000, its source's headers 9.5 MB. Kimi-K2 has half as many tensors again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "format/base/result.h"

namespace dspack::format {

using Json = nlohmann::json;

struct DocumentBounds {
  std::string_view kind;  // with its article, for messages
  uint64_t bytes = 0;
  uint64_t values = 0;
};

/// Tensors of one checkpoint: four times V3's, twice those of Kimi-K2 in four bits (weight, scale and shape of each
/// matrix). A catalogue takes 600 bytes per tensor, and a plan to repack it as much again: less than 500 MB in all.
inline constexpr uint64_t kMaxTensors = 400'000;
/// Header text of all files of a checkpoint: ten times V3's; a single file may use all of it (kMaxHeaderBytes).
inline constexpr uint64_t kMaxHeadersBytes = 100'000'000;
/// Strings in one header's __metadata__; trainers write about a dozen.
inline constexpr uint64_t kMaxMetadataEntries = 10'000;
/// Axes of a tensor; NumPy and PyTorch have at most 64.
inline constexpr uint64_t kMaxDimensions = 64;

/// A journal, read whole: for 15,000 experts with six digests each from a first fetch it has 10 MB.
inline constexpr uint64_t kMaxJournalBytes = 128ULL << 20;

inline constexpr DocumentBounds kManifestDocument{"a manifest", 64ULL << 20, 2'000'000};
/// A key and a file per tensor, and `metadata`.
inline constexpr DocumentBounds kIndexDocument{"an index of tensors", 64ULL << 20, 2 * kMaxTensors + 10'000};
/// config.json: quantization settings that name each matrix of each expert have some 200,000 values in 4 MB.
inline constexpr DocumentBounds kConfigDocument{"a configuration", 16ULL << 20, 500'000};
/// tokenizer.json: V3's is 7.8 MB and 640,000 values; vocabularies of 260,000 tokens have 33 MB and 2.1 million.
inline constexpr DocumentBounds kTokenizerDocument{"a tokenizer", 80ULL << 20, 3'000'000};
/// tokenizer_config.json, generation_config.json: the largest name a thousand added tokens with six fields each.
inline constexpr DocumentBounds kSettingsDocument{"a file of settings", 16ULL << 20, 200'000};
inline constexpr DocumentBounds kRecipeDocument{"a recipe", 1ULL << 20, 200'000};
/// A page of a listing has a thousand files of some twelve values; other answers name all files of a repository.
inline constexpr DocumentBounds kHubListingDocument{"a page of the Hub's listing", 16ULL << 20, 500'000};
inline constexpr DocumentBounds kHubAnswerDocument{"an answer of the Hub", 64ULL << 20, 1'000'000};
/// The body of a refusal; one line of it is shown.
inline constexpr DocumentBounds kRefusalDocument{"a refusal", 1ULL << 20, 10'000};
/// One line of a journal: the record of a file, which may hold every tensor of a layer.
inline constexpr DocumentBounds kRecordDocument{"a record of a journal", 16ULL << 20, 500'000};
/// The record of `reshard link`: three values for each of V3's 15,000 files.
inline constexpr DocumentBounds kLinkRecordDocument{"a record of links", 32ULL << 20, 1'000'000};
/// A line of a trace: the experts of each token and layer, so that a prefill of 4,096 tokens of V3 has 1.9 million.
inline constexpr DocumentBounds kTraceLineDocument{"a line of a trace", 8ULL << 20, 4'000'000};
inline constexpr DocumentBounds kConversationDocument{"a conversation", 64ULL << 20, 1'000'000};

/// JSON has no NUL, and the library's parser would take one for the end of the text and ignore the rest.
[[nodiscard]] Result<void> check_no_nul(std::string_view text);
[[nodiscard]] Result<Json> parse_json(std::string_view text, const DocumentBounds& bounds);
/// The same for the text of a file; a file of another kind (a Git LFS pointer, for example) is named as such.
[[nodiscard]] Result<Json> parse_json_file(std::string_view text, const DocumentBounds& bounds);

/// The JSON parser's error as one line for people.
[[nodiscard]] Error json_error(const Json::exception& exception);

/// One line, keys sorted, no spaces: equal values give equal bytes.
[[nodiscard]] std::string canonical_json(const Json& value);

// Checked fields of an object. `object` must be an object; errors name the key.
[[nodiscard]] Result<uint64_t> json_uint(const Json& object, std::string_view key);
[[nodiscard]] Result<std::string> json_string(const Json& object, std::string_view key);
[[nodiscard]] Result<const Json*> json_array(const Json& object, std::string_view key);
[[nodiscard]] Result<const Json*> json_object(const Json& object, std::string_view key);

}  // namespace dspack::format
