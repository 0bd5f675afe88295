// README.md of a packed repository: the block of YAML at its top, what it says of the weights, and which other programs
// can read them.
// Threads: pure functions, but for read_source_card. Source: the Hub's documentation of model cards (metadata between
// two lines of "---").
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "format/file_system.h"
#include "format/manifest.h"
#include "format/tensor_name.h"
#include "reshard/plan/recipe.h"

namespace dspack::reshard {

/// Why no other program can read the weights as they lie there, as the end of a sentence ("it cannot be read: ...");
/// for all of it `reshard unpack` is the remedy. nullopt: they can.
[[nodiscard]] std::optional<std::string_view> unreadable_reason(const format::Manifest& manifest);

/// By the names of the experts; transformers' where there are none.
[[nodiscard]] format::NameAuthor name_author(const format::Manifest& manifest);

/// Who reads names that are not transformers' own, in a sentence or two for people; empty: they are.
[[nodiscard]] std::string_view readers_of_names(format::NameAuthor author);

/// Fields whose value is one plain word, number or address. Lists, nested fields and text are passed over; so is all of
/// a block that does not end.
[[nodiscard]] std::map<std::string, std::string> card_fields(std::string_view card);

/// The block of a packed repository's card: where it is from, and what of the source's own fields (license, task,
/// library) holds for the same bytes in other files.
[[nodiscard]] std::string packed_card_fields(const format::Manifest& manifest, std::string_view source_card);

/// All of it: equal manifests and source cards give equal bytes.
[[nodiscard]] std::string model_card(const format::Manifest& manifest, const Recipe& recipe,
                                     const std::optional<std::string>& source_card);

/// The source's card, where it has been copied into a packed repository. nullopt: it has none.
[[nodiscard]] Result<std::optional<std::string>> read_source_card(const format::Path& packed,
                                                                  format::FileSystem& files);

}  // namespace dspack::reshard
