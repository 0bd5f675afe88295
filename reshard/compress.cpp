#include "reshard/compress.h"

#include <zstd.h>

#include <memory>

#include <fmt/format.h>

namespace dspack::reshard {
namespace {

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};

}  // namespace

Result<format::CompressedForm> compress_file(format::FileSystem& files, const format::Path& from,
                                             const format::Path& to, const std::vector<uint64_t>& cuts, int level) {
  const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
  DSPACK_CHECK(context != nullptr, "zstd has no memory for a context");
  TRY_ASSIGN(const auto raw, files.open_read(from));
  TRY_ASSIGN(const auto file, files.open_write(to, format::OpenMode::truncate));
  format::CompressedForm form;
  format::Sha256 hash;
  const auto append = [&](std::span<const std::byte> bytes) -> Result<void> {
    hash.update(bytes);
    TRY(file->write(form.size_bytes, bytes));
    form.size_bytes += bytes.size();
    return {};
  };
  std::vector<std::byte> frame(format::kMostFrameBytes);
  std::vector<std::byte> compressed(ZSTD_compressBound(frame.size()));
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const auto piece = std::span(frame).first(cuts[i + 1] - cuts[i]);
    TRY(raw->read(cuts[i], piece));
    const size_t bytes =
        ZSTD_compressCCtx(context.get(), compressed.data(), compressed.size(), piece.data(), piece.size(), level);
    if (ZSTD_isError(bytes) != 0)
      return Error{ErrorKind::io, fmt::format("{}: zstd: {}", to.string(), ZSTD_getErrorName(bytes))};
    TRY(append(std::span(compressed).first(bytes)));
    form.frames.push_back(static_cast<uint32_t>(bytes));
  }
  TRY(append(format::as_bytes(format::seek_table(cuts, form.frames))));
  TRY(file->sync());
  form.sha256 = hash.finish();
  return form;
}

}  // namespace dspack::reshard
