// A repository over one whose weight files may be compressed: files have the uncompressed names, sizes and bytes that
// the manifest's layouts describe. Which files are compressed is learnt when the manifest is read through it.
// Threads: as Repository. Lifetime: owns the repository below it. Memory: expanded_file.h. Errors: those of the
// repository below it; corrupt (bytes that do not decompress).
#pragma once

#include <memory>

#include "format/compressed/expanded_file.h"
#include "format/manifest.h"
#include "format/source/repository.h"

namespace dspack::format {

[[nodiscard]] std::unique_ptr<Repository> make_expanding_repository(std::unique_ptr<Repository> stored);

/// The sizes and frames of a compressed file. Precondition: the manifest was parsed, and `file` is compressed.
[[nodiscard]] CompressedFile compressed_file(const Manifest& manifest, const PackedFile& file);

/// Most memory that one thread holds while it reads files of a repository (expanded_file.h); 0: none is compressed.
[[nodiscard]] uint64_t reading_bytes(const Manifest& manifest);

}  // namespace dspack::format
