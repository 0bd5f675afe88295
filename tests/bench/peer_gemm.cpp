// Products of OpenBLAS and oneDNN on experts of V3's shape [2048, 7168], for comparison with bench_linear: weights that
// are FP32 or BF16 already, so that a library pays nothing for decoding; oneDNN's are laid out before as it likes best.
//
//   apt-get install libopenblas-dev libdnnl-dev
//   g++ -std=c++20 -O2 peer_gemm.cpp -o peer_gemm -lopenblas -ldnnl
//   OMP_NUM_THREADS=2 ./peer_gemm THREADS ROWS          # rows of x; both numbers of threads alike
//
// Two matrices in turn, so that none stays in the second-level cache; the best and the median of some rounds.
#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
#include <functional>
#include <random>
#include <vector>

namespace {

constexpr int kIn = 7168, kOut = 2048, kMatrices = 2, kRounds = 15;

std::vector<float> random_values(size_t count) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> any(-1, 1);
  std::vector<float> values(count);
  std::generate(values.begin(), values.end(), [&] { return any(random); });
  return values;
}

/// `multiply(i)` multiplies matrix i.
void measure(const char* name, int rows, const std::function<void(int)>& multiply) {
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kMatrices; ++i)
      multiply(i);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double operations = 2.0 * kIn * kOut * rows * kMatrices / 1e9;
  std::printf("%-14s %4d rows: median %.0f GFLOP/s, best %.0f\n", name, rows, operations / seconds[kRounds / 2],
              operations / seconds[0]);
}

void measure_blas(int threads, int rows, const std::vector<float>& weights, const std::vector<float>& x) {
  openblas_set_num_threads(threads);
  std::vector<float> y(size_t(rows) * kOut);
  measure("OpenBLAS f32", rows, [&](int i) {
    const float* matrix = weights.data() + size_t(i) * kIn * kOut;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, kOut, kIn, 1, x.data(), kIn, matrix, kIn, 0, y.data(),
                kOut);
  });
}

void measure_dnnl(const char* name, dnnl::memory::data_type type, int rows, std::vector<float>& weights,
                  std::vector<float>& x) {
  using dnnl::memory;
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const memory::desc x_any({rows, kIn}, type, memory::format_tag::ab);
  const memory::desc w_any({kIn, kOut}, type, memory::format_tag::any);
  const memory::desc y_desc({rows, kOut}, memory::data_type::f32, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc chosen({x_any, w_any, y_desc}, engine);
  const auto laid_out = [&](const memory::desc& from_desc, float* from, const memory::desc& to_desc) {
    memory source(from_desc, engine, from), target(to_desc, engine);
    dnnl::reorder(source, target).execute(stream, source, target);
    stream.wait();
    return target;
  };
  const memory::desc plain_w({kIn, kOut}, memory::data_type::f32, memory::format_tag::ba);
  std::vector<memory> matrices;
  for (int i = 0; i < kMatrices; ++i)
    matrices.push_back(laid_out(plain_w, weights.data() + size_t(i) * kIn * kOut, chosen.weights_desc()));
  // x is laid out, and rounded, in each product, as ours is.
  memory plain_x({{rows, kIn}, memory::data_type::f32, memory::format_tag::ab}, engine, x.data());
  memory ready_x(chosen.src_desc(), engine), y(y_desc, engine);
  const dnnl::reorder lay_out(plain_x, ready_x);
  const dnnl::matmul product(chosen);
  measure(name, rows, [&](int i) {
    lay_out.execute(stream, plain_x, ready_x);
    product.execute(stream, {{DNNL_ARG_SRC, ready_x}, {DNNL_ARG_WEIGHTS, matrices[size_t(i)]}, {DNNL_ARG_DST, y}});
    stream.wait();
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: peer_gemm THREADS ROWS\n");
    return 2;
  }
  const int threads = std::atoi(argv[1]), rows = std::atoi(argv[2]);
  std::vector<float> weights = random_values(size_t(kMatrices) * kIn * kOut), x = random_values(size_t(rows) * kIn);
  measure_blas(threads, rows, weights, x);
  measure_dnnl("oneDNN f32", dnnl::memory::data_type::f32, rows, weights, x);
  measure_dnnl("oneDNN bf16", dnnl::memory::data_type::bf16, rows, weights, x);
}
