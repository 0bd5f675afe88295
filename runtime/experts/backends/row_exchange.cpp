#include "runtime/experts/backends/row_exchange.h"

#include <algorithm>

#include "format/base/check.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {

namespace {

// The most rows of a piece: all results of 32 tokens that go to eight experts. V3: 7.3 MB, 290 us at 25 GB/s, compared
// to which a launch is cheap.
constexpr uint32_t kMostPieceRows = 256;

uint64_t row_bytes(const ExecutorShape& shape) {
  return uint64_t{shape.hidden} * sizeof(float);
}

uint32_t piece_rows(const ExecutorShape& shape) {
  return static_cast<uint32_t>(std::min<uint64_t>(kMostPieceRows, uint64_t{shape.wave_tokens} * shape.top_k));
}

}  // namespace

Result<std::unique_ptr<RowExchange>> RowExchange::make(const End& first, const End& further,
                                                       const ExecutorShape& shape) {
  std::unique_ptr<RowExchange> made(new RowExchange(first.queue, further.queue, shape));
  TRY_ASSIGN(made->own_, further.device.allocate(device_bytes(shape)));
  TRY_ASSIGN(made->pinned_, first.device.allocate_host(host_bytes(shape)));
  made->pieces_[1].offset_bytes = row_bytes(shape) * piece_rows(shape);
  return made;
}

uint64_t RowExchange::device_bytes(const ExecutorShape& shape) {
  return row_bytes(shape) * shape.wave_tokens * (1 + uint64_t{shape.top_k});
}

uint64_t RowExchange::host_bytes(const ExecutorShape& shape) {
  return 2 * row_bytes(shape) * piece_rows(shape);
}

kernels::Rows RowExchange::own_rows(uint64_t first, uint32_t rows) const {
  return {.data = {.buffer = own_.get(), .offset_bytes = first * row_bytes(shape_)},
          .rows = rows,
          .cols = shape_.hidden,
          .stride = shape_.hidden};
}

kernels::Rows RowExchange::rows_of_piece(const Piece& piece, uint32_t rows) const {
  return {.data = {.buffer = pinned_.get(), .offset_bytes = piece.offset_bytes},
          .rows = rows,
          .cols = shape_.hidden,
          .stride = shape_.hidden};
}

RowExchange::Piece& RowExchange::next_piece(kernels::Queue& writer) {
  Piece& piece = pieces_[turn_++ % pieces_.size()];
  if (piece.read != nullptr) writer.wait(*piece.read);
  return piece;
}

void RowExchange::send(const kernels::Rows& x) {
  DSPACK_CHECK(x.rows <= shape_.wave_tokens && x.stride == x.cols && x.cols == shape_.hidden,
               "an input of another shape");
  rows_ = x.rows;
  const uint32_t most = piece_rows(shape_);
  for (uint32_t row = 0; row < x.rows; row += most) {
    const uint32_t count = std::min(most, x.rows - row);
    Piece& piece = next_piece(first_);
    const kernels::Rows passing = rows_of_piece(piece, count);
    first_.copy(passing.data, rows_of(x, row, count).data, row_bytes(shape_) * count);
    further_.wait(*first_.mark());
    further_.copy(own_rows(row, count).data, passing.data, row_bytes(shape_) * count);
    piece.read = further_.mark();
  }
}

void RowExchange::bring(const kernels::Rows& to, std::span<const uint32_t> which) {
  const size_t most = piece_rows(shape_);
  for (size_t done = 0; done < which.size(); done += most) {
    const auto some = which.subspan(done, std::min(most, which.size() - done));
    Piece& piece = next_piece(further_);
    const kernels::Rows passing = rows_of_piece(piece, static_cast<uint32_t>(some.size()));
    further_.gather_rows(passing, parts(), some);
    meet();
    first_.scatter_rows(to, passing, some);
    piece.read = first_.mark();
  }
}

}  // namespace dspack::runtime
