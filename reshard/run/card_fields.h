// The block of YAML at the top of a model card: what a source's card says there, and what ours does.
// Threads: pure functions. Source: the Hub's documentation of model cards (metadata between two lines of "---").
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "format/manifest.h"

namespace dspack::reshard {

/// Fields whose value is one plain word, number or address. Lists, nested fields and text are passed over; so is all of
/// a block that does not end.
[[nodiscard]] std::map<std::string, std::string> card_fields(std::string_view card);

/// The block of a packed repository's card: where it is from, and what of the source's own fields (license, task,
/// library) holds for the same bytes in other files.
[[nodiscard]] std::string packed_card_fields(const format::Manifest& manifest, std::string_view source_card);

/// Text from outside as Markdown shows it: nothing of it makes a table, a link, code or a tag.
[[nodiscard]] std::string markdown(std::string_view text);

}  // namespace dspack::reshard
