// README.md of a packed repository: its YAML block, a description of the weights, and which other programs can read
// them.
// Threads: pure functions, except read_source_card. Source: the Hub's documentation of model cards (metadata between
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

/// Why other programs cannot read the weights as they are, as the end of a sentence ("it cannot be read: ...");
/// `reshard unpack` is the remedy for every reason. nullopt: they can.
[[nodiscard]] std::optional<std::string_view> unreadable_reason(const format::Manifest& manifest);

/// Determined by the names of the experts; transformers, if there are none.
[[nodiscard]] format::NameAuthor name_author(const format::Manifest& manifest);

/// Which programs read names that are not transformers' own, in a sentence or two; empty: the names are transformers'.
[[nodiscard]] std::string_view readers_of_names(format::NameAuthor author);

/// Fields whose value is one plain word, number or address. Lists, nested fields and text are skipped; an unterminated
/// block has no fields.
[[nodiscard]] std::map<std::string, std::string> card_fields(std::string_view card);

/// The YAML block of a packed repository's card: its origin, and those of the source's fields (license, task, library)
/// that still hold for the same bytes in other files.
[[nodiscard]] std::string packed_card_fields(const format::Manifest& manifest, std::string_view source_card);

/// The whole card: equal manifests and source cards give equal bytes.
[[nodiscard]] std::string model_card(const format::Manifest& manifest, const Recipe& recipe,
                                     const std::optional<std::string>& source_card);

/// The source's card, if it was copied into the packed repository. nullopt: it has none.
[[nodiscard]] Result<std::optional<std::string>> read_source_card(const format::Path& packed,
                                                                  format::FileSystem& files);

}  // namespace dspack::reshard
