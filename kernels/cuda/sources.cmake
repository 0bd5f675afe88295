# What the CUDA device is made of: compiled by nvcc for hardware, and by the C++ compiler for the GPU that the test suite
# plays.
set(dspack_cuda_kernels
  attention/attend.cu
  attention/attend_exact.cu
  attention/attend_expanded.cu
  attention/attend_split.cu
  attention/attend_tensor.cu
  attention/compress.cu
  attention/expanded_keys.cu
  attention/latent_rows.cu
  attention/latents.cu
  attention/window_attend.cu
  experts/expert_tiles.cu
  experts/experts.cu
  experts/experts_tensor.cu
  linear/head_linear.cu
  linear/head_linear_transposed.cu
  linear/linear.cu
  linear/linear_blas.cu
  linear/linear_tensor.cu
  sparse/choose.cu
  sparse/choose_scores.cu
  sparse/choose_tensor.cu
  tokens/argmax.cu
  tokens/elementwise.cu
  tokens/rounded_rows.cu
  tokens/route.cu
  tokens/sample.cu
  tokens/streams.cu)
# The memory that its operations take, which programs plan with; so these are compiled into them too.
set(dspack_cuda_sizes
  attention/attend.cpp
  attention/attend_expanded.cpp
  experts/expert_tiles.cpp
  host/queue_memory.cpp
  sparse/choose.cpp)
set(dspack_cuda_host
  ${dspack_cuda_sizes}
  experts/experts_blas.cpp
  hardware/runtime.cpp
  host/cuda_device.cpp
  host/cuda_memory.cpp
  host/cuda_queue.cpp
  host/index_space.cpp
  host/queue_attention.cpp
  host/queue_experts.cpp
  linear/cublaslt.cpp
  linear/linear_blas.cpp)
# Of the program's own libraries; compiled once more, since those are not made for a shared object.
set(dspack_cuda_shared
  kernels/checks.cpp
  format/base/check.cpp
  format/base/result.cpp
  format/dtype.cpp)
list(TRANSFORM dspack_cuda_shared PREPEND ${PROJECT_SOURCE_DIR}/)
list(TRANSFORM dspack_cuda_kernels PREPEND ${PROJECT_SOURCE_DIR}/kernels/cuda/)
list(TRANSFORM dspack_cuda_host PREPEND ${PROJECT_SOURCE_DIR}/kernels/cuda/)
