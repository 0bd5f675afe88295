// Sizes as people write them: "5GB", "4GiB", "4096".
// Threads: thread-safe (pure functions). Errors: invalid, with what is allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "format/base/result.h"

namespace dspack {

/// Bytes of a whole number with or without a unit: B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB or
/// K, M, G, T (of 1024), in upper or lower case.
[[nodiscard]] Result<uint64_t> parse_size(std::string_view text);

/// For people, in powers of 1000 and three digits: "20.4 GB", "0 B".
[[nodiscard]] std::string size_words(uint64_t bytes);

}  // namespace dspack
