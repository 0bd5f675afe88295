#include "format/compressed/frames.h"

#include <zstd.h>

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "format/base/size.h"

namespace dspack::format {
namespace {

// The seekable format's constants.
constexpr uint32_t kSkippableMagic = 0x184D2A5E;
constexpr uint32_t kSeekableMagic = 0x8F92EAB1;
constexpr uint64_t kFooterBytes = 9;
constexpr uint64_t kEntryBytes = 8;
constexpr uint64_t kSkippableHeaderBytes = 8;

void put_u32(std::string& text, uint64_t value) {
  for (int shift = 0; shift < 32; shift += 8)
    text += static_cast<char>((value >> shift) & 0xff);
}

struct FreeContext {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

/// One per thread: creating one costs as much as decompressing a small frame.
ZSTD_DCtx* own_context() {
  thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> context(allocated(ZSTD_createDCtx()));
  return context.get();
}

Result<void> expand(std::span<const std::byte> stored, std::span<std::byte> into) {
  const size_t bytes = ZSTD_decompressDCtx(own_context(), into.data(), into.size(), stored.data(), stored.size());
  if (ZSTD_isError(bytes) != 0)
    return Error{ErrorKind::corrupt, fmt::format("does not decompress ({})", ZSTD_getErrorName(bytes))};
  if (bytes != into.size())
    return Error{ErrorKind::corrupt, fmt::format("decompresses to {} bytes instead of {}", bytes, into.size())};
  return {};
}

}  // namespace

std::vector<uint64_t> frame_cuts(std::span<const uint64_t> tensors, uint64_t size_bytes) {
  std::vector<uint64_t> cuts{0};
  const auto cut_to = [&](uint64_t end) {
    const auto next = [&] { return (cuts.back() / kMaxFrameBytes + 1) * kMaxFrameBytes; };
    while (next() < end)
      cuts.push_back(next());
    if (end != cuts.back()) cuts.push_back(end);
  };
  for (const uint64_t begin : tensors)
    cut_to(begin);
  cut_to(size_bytes);
  return cuts;
}

Result<FrameTable> frame_table(std::vector<uint64_t> cuts, const CompressedForm& form) {
  if (form.frames.size() + 1 != cuts.size()) {
    return Error{ErrorKind::invalid, fmt::format("lists {} compressed frames where its tensors make {}",
                                                 form.frames.size(), cuts.size() - 1)};
  }
  FrameTable table{.raw = std::move(cuts), .stored = {0}};
  for (const uint32_t bytes : form.frames) {
    if (bytes == 0) return Error{ErrorKind::invalid, "lists a compressed frame without bytes"};
    table.stored.push_back(table.stored.back() + bytes);
  }
  if (table.stored.back() + seek_table_bytes(form.frames.size()) != form.size_bytes)
    return Error{ErrorKind::invalid, "its compressed frames do not make up its compressed size"};
  return table;
}

std::string seek_table(std::span<const uint64_t> cuts, std::span<const uint32_t> frames) {
  DSPACK_CHECK(cuts.size() == frames.size() + 1, "frames and cuts do not fit");
  std::string table;
  put_u32(table, kSkippableMagic);
  put_u32(table, frames.size() * kEntryBytes + kFooterBytes);
  for (size_t i = 0; i < frames.size(); ++i) {
    put_u32(table, frames[i]);
    put_u32(table, cuts[i + 1] - cuts[i]);
  }
  put_u32(table, frames.size());
  table += '\0';  // no checksums of frames: every tensor has a digest
  put_u32(table, kSeekableMagic);
  return table;
}

uint64_t seek_table_bytes(uint64_t frames) {
  return kSkippableHeaderBytes + frames * kEntryBytes + kFooterBytes;
}

FrameRun frames_of(const FrameTable& table, ByteRange raw) {
  if (raw.size() == 0) return {};
  const auto first = std::ranges::upper_bound(table.raw, raw.begin) - table.raw.begin() - 1;
  const auto last = std::ranges::lower_bound(table.raw, raw.end) - table.raw.begin();
  return {static_cast<size_t>(first), static_cast<size_t>(last)};
}

Result<void> expand_frame(const FrameTable& table, size_t number, std::span<const std::byte> stored, ByteRange raw,
                          std::span<std::byte> into) {
  const ByteRange frame{table.raw[number], table.raw[number + 1]};
  const ByteRange wanted{std::max(frame.begin, raw.begin), std::min(frame.end, raw.end)};
  const auto place = into.subspan(wanted.begin - raw.begin, wanted.size());
  if (wanted == frame) return expand(stored, place);
  std::vector<std::byte> whole(frame.size());
  TRY(expand(stored, whole));
  const auto part = std::span(whole).subspan(wanted.begin - frame.begin, wanted.size());
  std::ranges::copy(part, place.begin());
  return {};
}

}  // namespace dspack::format
