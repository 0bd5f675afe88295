// Rows of a device buffer as values in host memory, whatever their stride.
// Threads: as the queue. Errors: none.
#pragma once

#include <span>
#include <vector>

#include "kernels/ops.h"

namespace dspack::runtime {

/// Values [rows, cols], dense. Waits for the queue.
[[nodiscard]] std::vector<float> download_rows(kernels::Queue& queue, const kernels::Rows& rows);

/// Puts dense values [rows, cols] there. Waits for the queue.
void upload_rows(kernels::Queue& queue, const kernels::Rows& rows, std::span<const float> values);

}  // namespace dspack::runtime
