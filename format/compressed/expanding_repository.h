// A repository as it is meant, over one whose weight files may be stored compressed: files have the names, sizes and
// bytes that the manifest's layouts speak of, wherever and however they lie. Which are compressed it learns when the
// manifest is read through it.
// Threads: as Repository. Lifetime: owns the one below. Memory: expanded_file.h. Errors: as the one below; corrupt
// (bytes that do not decompress).
#pragma once

#include <memory>

#include "format/compressed/expanded_file.h"
#include "format/manifest.h"
#include "format/source/repository.h"

namespace dspack::format {

[[nodiscard]] std::unique_ptr<Repository> make_expanding_repository(std::unique_ptr<Repository> stored);

/// How a file that is stored compressed lies. Precondition: the manifest was parsed, and the file is.
[[nodiscard]] CompressedFile compressed_file(const Manifest& manifest, const PackedFile& file);

/// Most that one thread holds while it reads files of a repository (expanded_file.h); 0: none is compressed.
[[nodiscard]] uint64_t reading_bytes(const Manifest& manifest);

}  // namespace dspack::format
