#include "runtime/weights/host_rows.h"

#include <algorithm>

#include "runtime/weights/scratch.h"

namespace dspack::runtime {

std::vector<float> download_rows(kernels::Queue& queue, const kernels::Rows& rows) {
  if (rows.rows == 0) return {};
  // Copies the gaps between strided rows too: one transfer is cheaper than one for each row.
  std::vector<float> values((rows.rows - size_t{1}) * rows.stride + rows.cols);
  queue.download(std::as_writable_bytes(std::span(values)), rows.data);
  queue.synchronize();
  for (size_t row = 1; row < rows.rows && rows.stride != rows.cols; ++row) {
    const auto from = values.begin() + static_cast<std::ptrdiff_t>(row * rows.stride);
    std::copy(from, from + rows.cols, values.begin() + static_cast<std::ptrdiff_t>(row * rows.cols));
  }
  values.resize(size_t{rows.rows} * rows.cols);
  return values;
}

void upload_rows(kernels::Queue& queue, const kernels::Rows& rows, std::span<const float> values) {
  DSPACK_CHECK(values.size() == size_t{rows.rows} * rows.cols, "values for other rows");
  for (uint32_t row = 0; row < rows.rows; ++row) {
    queue.upload(rows_of(rows, row, 1).data, std::as_bytes(values.subspan(size_t{row} * rows.cols, rows.cols)));
  }
  queue.synchronize();
}

}  // namespace dspack::runtime
