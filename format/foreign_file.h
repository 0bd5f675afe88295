// What a file is that stands where weights or settings should be: people find pointers of Git LFS, pages of a web site
// and other programs' formats there.
// Threads: thread-safe (pure functions). Errors: none.
// Source: Git LFS, docs/spec.md; the first bytes of GGUF, of ZIP archives and of pickles (PyTorch's .bin).
#pragma once

#include <string_view>

namespace dspack::format {

/// Bytes of a file that are enough to tell.
inline constexpr size_t kTellingBytes = 512;

/// What begins so, and the remedy, as the end of a sentence that begins with the file's name; empty: nothing known.
[[nodiscard]] std::string_view foreign_kind(std::string_view first_bytes);

}  // namespace dspack::format
