// A compressed weight file: independent zstd frames of at most 1 MiB of raw bytes, none of which crosses a tensor's
// bounds or a multiple of 1 MiB, so that any tensor can be read without the rest, and readers whose pieces end at such
// multiples read no frame twice; after the frames, a table in zstd's seekable format.
// Threads: plain values and pure functions. Errors: invalid (frames that do not fit the file), corrupt (bytes that do
// not decompress). Source: RFC 8878 (zstd); zstd's contrib/seekable_format, version 0.1.0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/base/ids.h"
#include "format/base/result.h"
#include "format/digest.h"

namespace dspack::format {

inline constexpr uint64_t kMaxFrameBytes = 1ULL << 20;
/// Suffix of a compressed file's path.
inline constexpr std::string_view kCompressedSuffix = ".zst";

/// How a file is compressed, as its manifest records it.
struct CompressedForm {
  uint64_t size_bytes = 0;       // frames and table
  Digest sha256;                 // SHA-256 over frames and table
  std::vector<uint32_t> frames;  // compressed bytes of each frame, in order
};

/// Positions of frames: frame i holds the raw bytes [raw[i], raw[i + 1]) in the stored bytes [stored[i], stored[i +
/// 1]).
struct FrameTable {
  std::vector<uint64_t> raw;
  std::vector<uint64_t> stored;
};

/// Offsets at which a file's raw bytes are cut: the file's beginning, the data's, each tensor's, every multiple of 1
/// MiB, and the file's end. `tensors`: absolute and ascending.
[[nodiscard]] std::vector<uint64_t> frame_cuts(std::span<const uint64_t> tensors, uint64_t size_bytes);

[[nodiscard]] Result<FrameTable> frame_table(std::vector<uint64_t> cuts, const CompressedForm& form);

/// The table after the frames. Precondition: one cut more than frames.
[[nodiscard]] std::string seek_table(std::span<const uint64_t> cuts, std::span<const uint32_t> frames);
/// Length of the table.
[[nodiscard]] uint64_t seek_table_bytes(uint64_t frames);

/// The frames that hold a raw range, as [first, last).
struct FrameRun {
  size_t first = 0;
  size_t last = 0;
};
[[nodiscard]] FrameRun frames_of(const FrameTable& table, ByteRange raw);

/// Decompresses the part of frame `number` that lies in `raw` into its place in `into`, which holds that range.
[[nodiscard]] Result<void> expand_frame(const FrameTable& table, size_t number, std::span<const std::byte> stored,
                                        ByteRange raw, std::span<std::byte> into);

}  // namespace dspack::format
