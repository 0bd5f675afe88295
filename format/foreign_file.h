// Recognises other files where weights or settings should be: Git LFS pointers, web pages and other programs' formats.
// Threads: thread-safe (pure functions). Errors: none.
// Source: Git LFS, docs/spec.md; the first bytes of GGUF, of ZIP archives and of pickles (PyTorch's .bin).
#pragma once

#include <string_view>

namespace dspack::format {

/// First bytes of a file that suffice to recognise it.
inline constexpr size_t kTellingBytes = 512;

/// The kind of a file with these first bytes, and the remedy, as the end of a sentence that begins with the file's
/// name; empty: not recognised.
[[nodiscard]] std::string_view foreign_kind(std::string_view first_bytes);

}  // namespace dspack::format
