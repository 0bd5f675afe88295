// `dsrun cache` and `reshard cache`: what is kept of models read over a network, listed, removed and checked.
// Threads: main; the texts are pure functions. Errors: those of format/cache/kept_place.h.
#pragma once

#include <cstdint>
#include <string>

#include "format/cache/kept_place.h"
#include "format/cli/verb.h"

namespace dspack::format {

[[nodiscard]] Verb cache_verb();

/// "3 days ago"; less than a minute, or a time to come: "just now".
[[nodiscard]] std::string age_words(int64_t seconds);
/// "81 %", which is 100 % only of all; "-": not known.
[[nodiscard]] std::string share_words(const std::optional<KeptShare>& share);
/// A table for people. `now_ns`: since the epoch.
[[nodiscard]] std::string kept_table(const KeptPlaces& kept, const Path& root, uint64_t free_bytes, int64_t now_ns);
[[nodiscard]] std::string kept_json(const KeptPlaces& kept, const Path& root, uint64_t free_bytes);
/// What --verify found; of findings the first.
[[nodiscard]] std::string check_json(const KeptName& place, const CacheCheck& check);

}  // namespace dspack::format
