// Sizes that the kernels of head_linear and the choice of their launches share. Threads: constants.
#pragma once

namespace dspack::kernels::cuda {

inline constexpr unsigned kHeadWarps = 8;       // of a block
inline constexpr unsigned kHeadRowsOfWarp = 4;  // plain: matrix rows that a warp multiplies at once
inline constexpr unsigned kHeadRowTile = 256;   // transposed: inputs, each of a matrix row, in shared memory at once

}  // namespace dspack::kernels::cuda
