// A weight file that is stored compressed. Input: on the first line the sizes of its frames as they are stored, apart
// by spaces; on the second where its tensors begin, and its size, in the same way; then the stored bytes.
#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "format/compressed/frames.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using format::FrameTable;

namespace {

constexpr uint64_t kMaxBytes = 4 * format::kMaxFrameBytes;  // of a file that is worth the time

/// Ascending or not; nullopt of what is no list of numbers.
std::optional<std::vector<uint64_t>> numbers(std::string_view line) {
  std::vector<uint64_t> list;
  for (const std::string_view word : fuzz::split(line, ' ')) {
    uint64_t number = 0;
    const auto read = std::from_chars(word.data(), word.data() + word.size(), number);
    if (read.ec != std::errc() || read.ptr != word.data() + word.size() || number > kMaxBytes) return std::nullopt;
    list.push_back(number);
  }
  return list;
}

/// From nothing to the file's end, ascending; a frame is as large as it may be, and crosses no tensor's beginning.
void check_cuts(const std::vector<uint64_t>& cuts, std::span<const uint64_t> tensors, uint64_t size_bytes) {
  DSPACK_CHECK(cuts.front() == 0 && cuts.back() == size_bytes, "the cuts are not those of the file");
  for (size_t i = 1; i < cuts.size(); ++i)
    DSPACK_CHECK(cuts[i - 1] < cuts[i] && cuts[i] - cuts[i - 1] <= format::kMaxFrameBytes, "a frame of a wrong size");
  for (const uint64_t begin : tensors)
    DSPACK_CHECK(std::ranges::binary_search(cuts, begin), "a frame across the beginning of a tensor");
}

/// The raw bytes of a range; nullopt where a frame does not decompress, which is told.
std::optional<std::vector<std::byte>> read(const FrameTable& table, std::span<const std::byte> stored, ByteRange raw) {
  std::vector<std::byte> bytes(raw.size());
  const format::FrameRun run = format::frames_of(table, raw);
  DSPACK_CHECK(raw.size() == 0 || (table.raw[run.first] <= raw.begin && raw.end <= table.raw[run.last]),
               "frames that do not hold the range");
  for (size_t i = run.first; i < run.last; ++i) {
    const auto frame = stored.subspan(table.stored[i], table.stored[i + 1] - table.stored[i]);
    const auto expanded = format::expand_frame(table, i, frame, raw, bytes);
    if (!expanded) {
      fuzz::check_refusal(expanded.error());
      return std::nullopt;
    }
  }
  return bytes;
}

/// A part of the file reads as that part of the whole.
void check_parts(const FrameTable& table, std::span<const std::byte> stored) {
  const uint64_t size = table.raw.back();
  const auto whole = read(table, stored, {0, size});
  if (!whole) return;
  for (const uint64_t cut : table.raw) {
    const ByteRange raw{cut - std::min<uint64_t>(cut, 3), std::min(size, cut + 5)};
    const auto part = read(table, stored, raw);
    DSPACK_CHECK(part.has_value(), "a part of what can be read cannot be read");
    DSPACK_CHECK(std::equal(part->begin(), part->end(), whole->begin() + static_cast<std::ptrdiff_t>(raw.begin)),
                 "a part reads otherwise than the whole");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  const auto sizes = numbers(fuzz::take(text, '\n'));
  auto bounds = numbers(fuzz::take(text, '\n'));
  if (!sizes || !bounds || bounds->empty() || !std::ranges::is_sorted(*bounds)) return 0;
  const uint64_t size_bytes = bounds->back();
  bounds->pop_back();
  const std::vector<uint64_t> cuts = format::frame_cuts(*bounds, size_bytes);
  check_cuts(cuts, *bounds, size_bytes);

  format::CompressedForm form;
  form.frames.assign(sizes->begin(), sizes->end());
  form.size_bytes = text.size() + format::seek_table_bytes(form.frames.size());
  const auto table = format::frame_table(cuts, form);
  if (!table) {
    fuzz::check_refusal(table.error());
    return 0;
  }
  DSPACK_CHECK(table->stored.back() == text.size(), "frames that are not the stored bytes");
  DSPACK_CHECK(format::seek_table(cuts, form.frames).size() == format::seek_table_bytes(form.frames.size()),
               "a table of another length");
  check_parts(*table, std::as_bytes(std::span(text)));
  return 0;
}
