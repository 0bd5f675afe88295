#include <doctest/doctest.h>

#include "kernels/cuda/linear/linear_blas.h"

namespace dspack::linear_blas_choice_test {

using namespace dspack;
using namespace dspack::kernels::cuda;
using kernels::Precision;

namespace {

constexpr BlasCard kHopper{.has_block_scaling = true};
constexpr BlasCard kOther{};

/// Nothing is read: addresses are what they are multiples of.
template <class T>
T* place(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

LinearTask f8_task(uint32_t out, uint32_t in, uint32_t rows) {
  return {.weight = {{kernels::Coding::f8_e4m3, out, in, 128, 128}, {place<void>(0x1000), place<float>(0x2000)}},
          .x = {.data = place<float>(0x3000), .stride = in},
          .y = {.data = place<float>(0x4000), .stride = out},
          .rows = rows};
}
LinearTask bf16_task(uint32_t out, uint32_t in, uint32_t rows) {
  LinearTask task = f8_task(out, in, rows);
  task.weight.coding = kernels::Coding::bf16;
  task.weight.planes[kernels::kScales] = nullptr;
  return task;
}

BlasPath path(const LinearTask& task, Precision precision, const BlasCard& card = kHopper) {
  return choose_linear_blas(task, precision, card, {}).path;
}

}  // namespace

TEST_CASE("cuda: which products are cuBLASLt's") {
  const LinearTask f8 = f8_task(1536, 7168, 512);
  CHECK(path(f8, Precision::exact) == BlasPath::none);
  CHECK(path(f8, Precision::bf16) == BlasPath::bf16_decoded);
  CHECK(path(f8, Precision::fp8) == BlasPath::fp8);
  CHECK(path(f8, Precision::fp8, kOther) == BlasPath::bf16_decoded);
  const LinearTask bf16 = bf16_task(1536, 7168, 512);
  for (const Precision precision : {Precision::bf16, Precision::fp8})
    CHECK(path(bf16, precision, kOther) == BlasPath::bf16);
  CHECK(path(bf16, Precision::exact) == BlasPath::none);
  LinearTask scaled = bf16;
  scaled.weight.planes[kernels::kScales] = place<float>(0x2000);
  CHECK(path(scaled, Precision::fp8) == BlasPath::bf16_decoded);
  for (const kernels::Coding coding : {kernels::Coding::f16, kernels::Coding::f32}) {
    LinearTask exact = bf16;
    exact.weight.coding = coding;
    CHECK(path(exact, Precision::bf16) == BlasPath::none);
  }
}

TEST_CASE("cuda: few rows are not cuBLASLt's, and weights are decoded for many rows only") {
  CHECK(path(bf16_task(1536, 7168, 64), Precision::bf16) == BlasPath::none);
  CHECK(path(bf16_task(1536, 7168, 65), Precision::bf16) == BlasPath::bf16);
  CHECK(path(f8_task(1536, 7168, 64), Precision::fp8) == BlasPath::none);
  CHECK(path(f8_task(1536, 7168, 65), Precision::fp8) == BlasPath::fp8);
  CHECK(path(f8_task(1536, 7168, 255), Precision::bf16) == BlasPath::none);
  CHECK(path(f8_task(1536, 7168, 256), Precision::bf16) == BlasPath::bf16_decoded);
}

TEST_CASE("cuda: FP8 goes to cuBLASLt in its own blocks and sizes only") {
  const auto path_of = [](auto change) {
    LinearTask task = f8_task(1536, 7168, 512);
    change(task);
    return path(task, Precision::fp8);
  };
  CHECK(path_of([](LinearTask& task) { task.weight.block_out = 64; }) == BlasPath::bf16_decoded);
  CHECK(path_of([](LinearTask& task) { task.weight.block_in = 7168; }) == BlasPath::bf16_decoded);
  CHECK(path_of([](LinearTask& task) { task.weight.planes[kernels::kScales] = nullptr; }) == BlasPath::bf16_decoded);
  CHECK(path_of([](LinearTask& task) { task.weight.out = 1540; }) == BlasPath::bf16_decoded);
  CHECK(path_of([](LinearTask& task) { task.weight.in = 7160; }) == BlasPath::none);  // no pieces of 16 bytes
  CHECK(path_of([](LinearTask& task) { task.weight.planes[kernels::kScales] = place<float>(0x2004); }) ==
        BlasPath::fp8);  // copied
}

TEST_CASE("cuda: odd addresses are not cuBLASLt's") {
  const auto path_of = [](auto change) {
    LinearTask task = bf16_task(1536, 7168, 512);
    change(task);
    return path(task, Precision::bf16);
  };
  CHECK(path_of([](LinearTask& task) { task.weight.planes[kernels::kCodes] = place<void>(0x1008); }) == BlasPath::none);
  CHECK(path_of([](LinearTask& task) { task.weight.in = 7164; }) == BlasPath::none);
  CHECK(path_of([](LinearTask& task) { task.x.data = place<float>(0x3004); }) == BlasPath::none);
  CHECK(path_of([](LinearTask& task) { task.x.stride = 7170; }) == BlasPath::none);
  CHECK(path_of([](LinearTask& task) { task.y.data = place<float>(0x4008); }) == BlasPath::none);
  CHECK(path_of([](LinearTask& task) { task.y.stride = 1537; }) == BlasPath::none);
  CHECK(path_of([](LinearTask& task) { task.weight.out = 1531; }) == BlasPath::bf16);
}

TEST_CASE("cuda: block scaling is of compute capability 9.0 and cuBLAS 12.9") {
  const auto card = [](unsigned major, unsigned minor, size_t version) {
    return blas_card({.name = {}, .major = major, .minor = minor}, version).has_block_scaling;
  };
  CHECK(card(9, 0, 120'900));
  CHECK(card(9, 0, 130'100));
  CHECK_FALSE(card(9, 0, 120'805));
  CHECK_FALSE(card(8, 9, 130'100));
  CHECK_FALSE(card(10, 0, 130'100));
}

TEST_CASE("cuda: parts of a product fit the workspace and cover it") {
  const BlasLimits limits;
  for (const uint32_t rows : {65U, 67U, 512U, 1000U, 4096U, 5001U, 100'000U}) {
    for (const auto& [out, in] : {std::pair{1536U, 7168U},
                                  {24576U, 1536U},
                                  {576U, 7168U},
                                  {7168U, 18432U},
                                  {7168U, 16384U},
                                  {129280U, 7168U},
                                  {16U, 16U},
                                  {16U, 1'048'576U}}) {
      for (const Precision precision : {Precision::bf16, Precision::fp8}) {
        for (const LinearTask& task : {f8_task(out, in, rows), bf16_task(out, in, rows)}) {
          CAPTURE(rows);
          CAPTURE(out);
          CAPTURE(in);
          const BlasChoice choice = choose_linear_blas(task, precision, kHopper, limits);
          if (choice.path == BlasPath::none) continue;
          CHECK(choice.rows_at_once > 0);
          CHECK(blas_input_bytes(choice.path, choice.rows_at_once, in) <= limits.input_bytes);
          const uint64_t parts = ceil_div(choice.rows, choice.rows_at_once);
          CHECK((parts == 1 || blas_input_bytes(choice.path, choice.rows, in) > limits.input_bytes));
          CHECK(choice.rows + (choice.path == BlasPath::fp8 ? rows % 4 : 0) == rows);
          if (choice.path == BlasPath::fp8) CHECK((choice.rows_at_once % 4 == 0 && choice.rows % 4 == 0));
          if (choice.path == BlasPath::bf16_decoded) {
            CHECK(uint64_t{choice.weight_rows_at_once} * in * 2 <= limits.weight_bytes);
          } else {
            CHECK(choice.weight_rows_at_once == out);
          }
        }
      }
    }
  }
  const BlasChoice wide = choose_linear_blas(f8_task(18432, 7168, 4096), Precision::bf16, kOther, limits);
  CHECK(wide.rows_at_once == 2048);         // two parts of 29 MB
  CHECK(wide.weight_rows_at_once == 4608);  // four parts of 66 MB
  CHECK(choose_linear_blas(bf16_task(16, 1 << 24, 65), Precision::bf16, kOther, limits).path == BlasPath::none);
}

TEST_CASE("cuda: what cuBLASLt takes of the GPU's memory is known before") {
  CHECK(linear_blas_workspace_bytes(Precision::exact, true) == 0);
  CHECK(linear_blas_workspace_bytes(Precision::bf16, false) == 0);
  CHECK(linear_blas_workspace_bytes(Precision::fp8, true) == 128ULL << 20);
}

}  // namespace dspack::linear_blas_choice_test
