// Copies rows of a device buffer, whatever their stride, to and from host memory.
// Threads: as the queue. Errors: none.
#pragma once

#include <span>
#include <vector>

#include "kernels/ops.h"

namespace dspack::runtime {

/// Returns the values [rows, cols], dense. Waits for the queue.
[[nodiscard]] std::vector<float> download_rows(kernels::Queue& queue, const kernels::Rows& rows);

/// Writes dense values [rows, cols] to `rows`. Waits for the queue.
void upload_rows(kernels::Queue& queue, const kernels::Rows& rows, std::span<const float> values);

}  // namespace dspack::runtime
