// `dsrun cache` and `reshard cache`: list, remove and check what is kept of models read over a network.
// Threads: main; the texts are pure functions. Errors: those of format/cache/kept_place.h.
#pragma once

#include <cstdint>
#include <string>

#include "format/cache/kept_place.h"
#include "format/cli/verb.h"

namespace dspack::format {

[[nodiscard]] Verb cache_verb();

/// "3 days ago"; "just now" for less than a minute, or a time in the future.
[[nodiscard]] std::string age_words(int64_t seconds);
/// "81 %"; 100 % only if complete; "-" if unknown.
[[nodiscard]] std::string share_words(const std::optional<KeptShare>& share);
/// A table for people. `now_ns`: since the epoch.
[[nodiscard]] std::string kept_table(const KeptPlaces& kept, const Path& root, uint64_t free_bytes, int64_t now_ns);
[[nodiscard]] std::string kept_json(const KeptPlaces& kept, const Path& root, uint64_t free_bytes);
/// The result of --verify; lists only the first findings.
[[nodiscard]] std::string check_json(const KeptName& place, const CacheCheck& check);

}  // namespace dspack::format
