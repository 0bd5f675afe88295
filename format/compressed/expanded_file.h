// Reads a compressed file as its uncompressed contents: whole, in ranges, or as a stream.
// Threads: as ReadFile and ByteSource. Lifetime: owns what it is given. Memory: a reading thread holds at most
// reading_bytes, whatever is asked for. Errors: those of the stored file; corrupt (bytes that do not decompress, a
// range beyond the end), naming `place`.
#pragma once

#include <memory>
#include <string>

#include "format/compressed/frames.h"
#include "format/file_system.h"
#include "format/source/repository.h"

namespace dspack::format {

struct CompressedFile {
  uint64_t raw_bytes = 0;
  uint64_t stored_bytes = 0;  // frames and table
  FrameTable table;
};

[[nodiscard]] std::unique_ptr<ReadFile> make_expanded_file(std::unique_ptr<ReadFile> stored,
                                                           std::shared_ptr<const CompressedFile> file,
                                                           std::string place);
[[nodiscard]] std::unique_ptr<ByteSource> make_expanded_source(std::unique_ptr<ByteSource> stored,
                                                               std::shared_ptr<const CompressedFile> file,
                                                               std::string place);

/// Most memory that one thread holds while it reads the file: one stored frame, one raw frame if only a part of it is
/// wanted, and zstd's own state.
[[nodiscard]] uint64_t reading_bytes(const FrameTable& table);

}  // namespace dspack::format
