# What the CUDA device is made of: compiled by nvcc for hardware, and by the C++ compiler for the GPU that the test suite
# plays.
set(dspack_cuda_kernels
  ${PROJECT_SOURCE_DIR}/kernels/cuda/attend_exact.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/attend_merge.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/elementwise.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/expert_tiles.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/experts.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/experts_tensor.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/linear.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/linear_tensor.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/route.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/sample.cu)
set(dspack_cuda_host
  ${PROJECT_SOURCE_DIR}/kernels/cuda/attend_choice.cpp
  ${PROJECT_SOURCE_DIR}/kernels/cuda/elementwise_choice.cpp
  ${PROJECT_SOURCE_DIR}/kernels/cuda/experts_choice.cpp
  ${PROJECT_SOURCE_DIR}/kernels/cuda/experts_tensor_choice.cpp
  ${PROJECT_SOURCE_DIR}/kernels/cuda/linear_choice.cpp
  ${PROJECT_SOURCE_DIR}/kernels/cuda/linear_tensor_choice.cpp)
