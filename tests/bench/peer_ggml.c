// Products of ggml (llama.cpp) on experts of V3's shape [2048, 7168], one row of x or more, for comparison with
// bench_linear: some 1 GB of matrices, one ggml_mul_mat each, in one graph; nine rounds.
//
//   pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36     # unpack it; cd vendor/llama.cpp
//   cmake -S . -B b -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF && cmake --build b --target ggml
//   gcc -O2 -Iggml/include peer_ggml.c -o peer_ggml b/ggml/src/libggml.a b/ggml/src/libggml-cpu.a
//       b/ggml/src/libggml-base.a -lm -lpthread -lgomp -lstdc++
//   ./peer_ggml THREADS [ROWS]
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-cpu.h"
#include "ggml.h"

enum { kIn = 7168, kOut = 2048, kRounds = 9 };
static const size_t kAllBytes = 1000000000;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static float random_value(float size) {
  return ((float)rand() / (float)RAND_MAX - 0.5F) * size;
}

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void measure(enum ggml_type type, int threads, int rows, const float* weights) {
  const size_t bytes = ggml_row_size(type, kIn) * kOut;
  const int count = (int)(kAllBytes / bytes) + 1;
  struct ggml_context* context =
      ggml_init((struct ggml_init_params){(size_t)count * (bytes + 1024 + (size_t)rows * kOut * 4) + ((size_t)(64 + rows) << 20), NULL, false});
  struct ggml_tensor* x = ggml_new_tensor_2d(context, GGML_TYPE_F32, kIn, rows);
  for (int i = 0; i < kIn * rows; ++i)
    ((float*)x->data)[i] = random_value(1);
  struct ggml_cgraph* graph = ggml_new_graph_custom(context, 4096, false);
  void* codes = malloc(bytes);
  ggml_quantize_chunk(type, weights, codes, 0, kOut, kIn, NULL);
  for (int i = 0; i < count; ++i) {
    struct ggml_tensor* matrix = ggml_new_tensor_2d(context, type, kIn, kOut);
    memcpy(matrix->data, codes, bytes);
    ggml_build_forward_expand(graph, ggml_mul_mat(context, matrix, x));
  }
  double seconds[kRounds];
  for (int round = 0; round < kRounds; ++round) {
    const double start = now();
    ggml_graph_compute_with_ctx(context, graph, threads);
    seconds[round] = now() - start;
  }
  qsort(seconds, kRounds, sizeof *seconds, by_value);
  const double median = seconds[kRounds / 2], values = (double)count * kIn * kOut;
  printf("%s, %d threads, %d rows: median %.1f GB/s, %.1f G weights/s; best %.1f GB/s, %.1f G weights/s, %.0f GFLOP/s\n",
         ggml_type_name(type), threads, rows, (double)count * (double)bytes / median / 1e9, values / median / 1e9,
         (double)count * (double)bytes / seconds[0] / 1e9, values / seconds[0] / 1e9,
         2 * rows * values / seconds[0] / 1e9);
  free(codes);
  ggml_free(context);
}

int main(int argc, char** argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : 2;
  const int rows = argc > 2 ? atoi(argv[2]) : 1;
  const enum ggml_type types[] = {GGML_TYPE_Q8_0, GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K, GGML_TYPE_MXFP4, GGML_TYPE_NVFP4};
  float* weights = malloc(sizeof(float) * kIn * kOut);
  for (size_t i = 0; i < (size_t)kIn * kOut; ++i)
    weights[i] = random_value(0.1F);
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i)
    measure(types[i], threads, rows, weights);
  free(weights);
  return 0;
}
