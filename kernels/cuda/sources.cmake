# What the CUDA device is made of: compiled by nvcc for hardware, and by the C++ compiler for the GPU that the test suite
# plays.
set(dspack_cuda_kernels
  argmax.cu
  attend.cu
  attend_exact.cu
  attend_expanded.cu
  attend_split.cu
  attend_tensor.cu
  choose.cu
  choose_scores.cu
  choose_tensor.cu
  elementwise.cu
  expanded_keys.cu
  expert_tiles.cu
  experts.cu
  experts_tensor.cu
  head_linear.cu
  head_linear_transposed.cu
  latent_rows.cu
  latents.cu
  linear.cu
  linear_blas.cu
  linear_tensor.cu
  rounded_rows.cu
  route.cu
  sample.cu)
set(dspack_cuda_host
  cublaslt.cpp
  cuda_device.cpp
  cuda_memory.cpp
  cuda_queue.cpp
  experts_blas.cpp
  index_space.cpp
  linear_blas.cpp
  queue_attention.cpp
  queue_experts.cpp
  runtime.cpp)
# Of the program's own libraries; compiled once more, since those are not made for a shared object.
set(dspack_cuda_shared
  kernels/checks.cpp
  format/base/check.cpp
  format/base/result.cpp
  format/dtype.cpp)
list(TRANSFORM dspack_cuda_shared PREPEND ${PROJECT_SOURCE_DIR}/)
list(TRANSFORM dspack_cuda_kernels PREPEND ${PROJECT_SOURCE_DIR}/kernels/cuda/)
list(TRANSFORM dspack_cuda_host PREPEND ${PROJECT_SOURCE_DIR}/kernels/cuda/)
