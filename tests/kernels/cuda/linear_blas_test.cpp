#include "kernels/cuda/linear/linear_blas.h"

#include <algorithm>

#include "tests/kernels/cuda/blas_lab.h"
#include "tests/kernels/linear_on_device.h"

namespace dspack::test::linear_blas_test {
namespace {

using gpu::cublaslt::DataType;
using kernels::Precision;
using kernels::cuda::BlasLimits;
using kernels::cuda::BlasPath;

const gpu::CublasLtSettings kThere{.version = 130'100};

const BlasCase kInPlace{{Dtype::bf16, 48, 328, 0, 0}, 65, Precision::bf16, BlasPath::bf16};
const BlasCase kDecoded{{Dtype::f8_e4m3, 40, 272, 128, 128}, 515, Precision::bf16, BlasPath::bf16_decoded};
const BlasCase kBlockScaled{{Dtype::f8_e4m3, 144, 272, 128, 128}, 71, Precision::fp8, BlasPath::fp8};

void check(const BlasCase& which, Random& random) {
  CAPTURE(which);
  gpu::configure_cublaslt(kThere);
  {
    BlasLab lab(which, random);
    BlasUnderTest with(which);
    REQUIRE(with.blas.run(lab.stream(), lab.task(), false));
    const gpu::CublasLtCounts counts = gpu::cublaslt_counts();
    CHECK((which.path == BlasPath::fp8) == (counts.f8_products > 0));
    CHECK((which.path == BlasPath::fp8) == (counts.bf16_products == 0));
    CHECK(lab.wrong(lab.results()) == 0);
    CHECK(with.use->refused_shapes == 0);
  }
  CHECK(gpu::cublaslt_counts().descriptors == 0);
}

}  // namespace

TEST_CASE("cuda: products by cuBLASLt equal those of rounded inputs and weights") {
  Random random;
  CAPTURE(random.seed());
  const BlasLimits small{.weight_bytes = 40 << 10, .input_bytes = 40 << 10, .library_bytes = 1 << 20};
  for (const BlasCase& which : std::initializer_list<BlasCase>{
           kInPlace,
           {{Dtype::bf16, 19, 264, 0, 0}, 130, Precision::fp8, BlasPath::bf16, small},
           kDecoded,
           {{Dtype::f8_e4m3, 131, 272, 128, 128}, 515, Precision::bf16, BlasPath::bf16_decoded, small},
           {{Dtype::f8_e4m3, 20, 144, 0, 0}, 512, Precision::fp8, BlasPath::bf16_decoded},
           {{Dtype::f8_e4m3, 17, 160, 1, 160}, 512, Precision::fp8, BlasPath::bf16_decoded},
           {{Dtype::bf16, 15, 192, 3, 96}, 512, Precision::bf16, BlasPath::bf16_decoded},
           kBlockScaled,
           {{Dtype::f8_e4m3, 160, 512, 128, 128}, 65, Precision::fp8, BlasPath::fp8},
           {{Dtype::f8_e4m3, 128, 1600, 128, 128}, 68, Precision::fp8, BlasPath::fp8, small},
           {{Dtype::f8_e4m3, 16, 16, 128, 128}, 66, Precision::fp8, BlasPath::fp8},
       })
    check(which, random);
}

TEST_CASE("cuda: inputs that E4M3 has no number for stay what they are by cuBLASLt, too") {
  Random random;
  CAPTURE(random.seed());
  gpu::configure_cublaslt(kThere);
  const BlasCase which = kBlockScaled;
  BlasLab lab(which, random);
  BlasUnderTest with(which);
  // A block of zeros, one with NaN, one with infinity, one whose largest value divided by 448 is zero; codes of every
  // size come with the random ones.
  std::vector<float> row(which.weight.in, 0.0F);
  for (const auto& [at, value] : {std::pair{0U, 0.0F},
                                  {1U, std::numeric_limits<float>::quiet_NaN()},
                                  {2U, std::numeric_limits<float>::infinity()},
                                  {3U, 1e-43F}}) {
    row[5] = value;
    lab.stream().copy_to_device(const_cast<float*>(lab.task().x.data) + at * lab.task().x.stride, row.data(),
                                row.size() * sizeof(float));
    lab.stream().synchronize();
  }
  REQUIRE(with.blas.run(lab.stream(), lab.task(), false));
  const auto got = lab.results();
  const auto is_all = [&](size_t at, auto condition) {
    return std::all_of(got.begin() + static_cast<std::ptrdiff_t>(at * which.weight.out),
                       got.begin() + static_cast<std::ptrdiff_t>((at + 1) * which.weight.out), condition);
  };
  CHECK(is_all(0, [](float value) { return value == 0; }));
  CHECK(is_all(1, [](float value) { return std::isnan(value); }));
  CHECK(is_all(2, [](float value) { return std::isnan(value); }));
  CHECK(is_all(3, [](float value) { return value == 0; }));
  CHECK(is_all(4, [](float value) { return std::isfinite(value); }));
}

TEST_CASE("cuda: a shape is planned once") {
  Random random;
  CAPTURE(random.seed());
  for (const BlasCase& which : {kInPlace, kDecoded, kBlockScaled}) {
    CAPTURE(which);
    gpu::configure_cublaslt(kThere);
    BlasLab lab(which, random);
    BlasUnderTest with(which);
    REQUIRE(with.blas.run(lab.stream(), lab.task(), false));
    const auto first = lab.results();
    const uint64_t planned = gpu::cublaslt_counts().heuristics;
    lab.poison_results();
    REQUIRE(with.blas.run(lab.stream(), lab.task(), false));
    CHECK(lab.results() == first);
    CHECK(gpu::cublaslt_counts().heuristics == planned);
  }
}

TEST_CASE("cuda: what cuBLASLt refuses is counted, asked for once, and left to others") {
  Random random;
  CAPTURE(random.seed());
  for (const BlasCase& which : {kInPlace, kDecoded, kBlockScaled}) {
    CAPTURE(which);
    gpu::CublasLtSettings settings = kThere;
    settings.refuses = [](DataType, uint64_t, uint64_t, uint64_t) { return true; };
    gpu::configure_cublaslt(settings);
    BlasLab lab(which, random);
    BlasUnderTest with(which);
    for (int time = 0; time < 2; ++time)
      CHECK_FALSE(with.blas.run(lab.stream(), lab.task(), false));
    CHECK(with.use->refused_shapes == 1);
    CHECK(gpu::cublaslt_counts().heuristics == 1);
    const auto got = lab.results();
    CHECK(std::all_of(got.begin(), got.end(), is_poison));
  }
}

TEST_CASE("cuda: a product that has a plan and does not run is left to others") {
  Random random;
  CAPTURE(random.seed());
  using gpu::cublaslt::Status;
  // The last two say that the card has no memory left for a kernel that the library loads when it is first wanted.
  for (const Status status : {Status::not_supported, Status::alloc_failed, Status::internal_error}) {
    CAPTURE(static_cast<int>(status));
    gpu::CublasLtSettings settings = kThere;
    settings.run_status = status;
    gpu::configure_cublaslt(settings);
    BlasLab lab(kInPlace, random);
    BlasUnderTest with(kInPlace);
    for (int time = 0; time < 2; ++time)
      CHECK_FALSE(with.blas.run(lab.stream(), lab.task(), false));
    CHECK(with.use->refused_shapes == 1);
    CHECK_FALSE(gpu::failure().has_value());
    lab.stream().synchronize();
  }
}

TEST_CASE("cuda: a product that fails while it runs is a failure of the device") {
  Random random;
  CAPTURE(random.seed());
  gpu::CublasLtSettings settings = kThere;
  settings.run_status = gpu::cublaslt::Status::execution_failed;
  gpu::configure_cublaslt(settings);
  BlasLab lab(kInPlace, random);
  BlasUnderTest with(kInPlace);
  CHECK_FALSE(with.blas.run(lab.stream(), lab.task(), false));
  REQUIRE(gpu::failure().has_value());
  CHECK(gpu::failure()->message.find("cuBLASLt") != std::string::npos);
  gpu::forget_failure();
}

TEST_CASE("cuda: FP8 that cuBLASLt refuses goes to it in BF16") {
  Random random;
  CAPTURE(random.seed());
  gpu::CublasLtSettings settings = kThere;
  settings.refuses = [](DataType type, uint64_t, uint64_t, uint64_t) { return type == DataType::f8_e4m3; };
  gpu::configure_cublaslt(settings);
  BlasCase which = kDecoded;
  which.weight.out = 48;  // FP8 takes multiples of 16
  which.precision = Precision::fp8;
  BlasLab lab(which, random);
  BlasUnderTest with(which);
  REQUIRE(with.blas.run(lab.stream(), lab.task(), false));
  CHECK(lab.wrong(lab.results()) == 0);
  CHECK(with.use->refused_shapes == 1);
  CHECK(gpu::cublaslt_counts().bf16_products == 1);
  CHECK(gpu::cublaslt_counts().f8_products == 0);
}

TEST_CASE("cuda: a recorded step takes from cuBLASLt what has run before, and computes the same") {
  Random random;
  CAPTURE(random.seed());
  for (const BlasCase& which : {kInPlace, kDecoded, kBlockScaled}) {
    CAPTURE(which);
    gpu::configure_cublaslt(kThere);
    BlasLab lab(which, random);
    BlasUnderTest with(which);
    lab.stream().begin_recording();
    CHECK_FALSE(with.blas.run(lab.stream(), lab.task(), true));
    const auto nothing = lab.stream().end_recording();
    CHECK(gpu::cublaslt_counts().heuristics == 0);
    REQUIRE(with.blas.run(lab.stream(), lab.task(), false));
    const auto first = lab.results();
    lab.poison_results();
    lab.stream().begin_recording();
    CHECK(with.blas.run(lab.stream(), lab.task(), true));
    const auto graph = lab.stream().end_recording();
    lab.stream().run(*graph);
    CHECK(lab.results() == first);
  }
}

TEST_CASE("cuda: without memory for its workspace cuBLASLt is not used") {
  Random random;
  CAPTURE(random.seed());
  gpu::configure_cublaslt(kThere);
  BlasCase which = kInPlace;
  which.limits.weight_bytes = 8ULL << 30;  // the card has four
  BlasLab lab(which, random);
  BlasUnderTest with(which);
  for (int time = 0; time < 2; ++time)
    CHECK_FALSE(with.blas.run(lab.stream(), lab.task(), false));
  CHECK(with.use->has_no_memory);
}

TEST_CASE("cuda: a card without block scaling multiplies FP8 weights in BF16") {
  Random random;
  CAPTURE(random.seed());
  gpu::configure_cublaslt(kThere);
  BlasCase which = kDecoded;
  which.precision = Precision::fp8;
  BlasLab lab(which, random);
  BlasUnderTest with(which, 10);
  REQUIRE(with.blas.run(lab.stream(), lab.task(), false));
  CHECK(lab.wrong(lab.results()) == 0);
  CHECK(gpu::cublaslt_counts().f8_products == 0);
}

// Through ops.h
// --------------------------------------------------------------------------------------------------------------

namespace {

std::unique_ptr<kernels::Device> device_with(Precision precision, const std::string& cublaslt) {
  gpu::configure_emulator({.seed = 1});
  auto device = kernels::make_cuda_device({.precision = precision, .cublaslt = cublaslt});
  REQUIRE(device.has_value());
  return std::move(*device);
}

uint64_t products() {
  return gpu::cublaslt_counts().bf16_products + gpu::cublaslt_counts().f8_products;
}

std::string described(Precision precision, const std::string& cublaslt) {
  return std::string(device_with(precision, cublaslt)->description());
}

}  // namespace

TEST_CASE("cuda: a device says whether it has cuBLASLt, and why not") {
  gpu::configure_cublaslt({});
  CHECK(described(Precision::exact, "") == "cuda emulated GPU, sm_90, exact");
  CHECK(described(Precision::exact, gpu::kEmulatedCublasLt) == "cuda emulated GPU, sm_90, exact");
  CHECK(described(Precision::split, gpu::kEmulatedCublasLt) == "cuda emulated GPU, sm_90, split");
  CHECK(described(Precision::bf16, "") ==
        "cuda emulated GPU, sm_90, bf16, without cuBLASLt (the emulated GPU has none that is not named)");
  CHECK(described(Precision::bf16, kernels::kNoCublasLt) == "cuda emulated GPU, sm_90, bf16, without cuBLASLt (off)");
  CHECK(described(Precision::fp8, gpu::kEmulatedCublasLt) == "cuda emulated GPU, sm_90, fp8, cuBLASLt 13.1.0");
  const auto wrong = kernels::make_cuda_device({.precision = Precision::bf16, .cublaslt = "nowhere"});
  REQUIRE_FALSE(wrong.has_value());
  CHECK(wrong.error().message == "there is no cuBLASLt nowhere");
  gpu::configure_cublaslt({.version = 120'904, .starts = false});
  CHECK(described(Precision::bf16, "").ends_with(", without cuBLASLt (emulated does not start: status 1)"));
  CHECK_FALSE(kernels::make_cuda_device({.precision = Precision::bf16, .cublaslt = "emulated"}).has_value());
}

TEST_CASE("cuda: linear() of many rows is the same by cuBLASLt and by this program's kernels, but for rounding") {
  Random random;
  CAPTURE(random.seed());
  gpu::configure_cublaslt(kThere);
  constexpr uint32_t kRows = 70;
  for (const WeightCase& shape : {WeightCase{Dtype::bf16, 40, 264, 0, 0}, {Dtype::f8_e4m3, 144, 272, 128, 128}}) {
    CAPTURE(shape);
    const RandomWeight weight = random_weight(shape, random);
    const auto x = random.normals(size_t{kRows} * shape.in);
    const auto own = multiply(*device_with(Precision::fp8, kernels::kNoCublasLt), weight, x, kRows);
    CHECK(products() == 0);
    const auto with = device_with(Precision::fp8, "");
    const uint64_t before = products();
    const auto by_library = multiply(*with, weight, x, kRows);
    CHECK(products() == before + 1);
    const ErrorReport report = compare(by_library, Doubles(own.begin(), own.end()), shape.out);
    CHECK_MESSAGE((report.not_a_number == 0 && report.nmse < 1e-12), report);
    gpu::configure_cublaslt(kThere);
  }
}

TEST_CASE("cuda: linear() is computed where cuBLASLt refuses, and the device tells") {
  Random random;
  CAPTURE(random.seed());
  gpu::CublasLtSettings settings = kThere;
  settings.refuses = [](DataType, uint64_t, uint64_t, uint64_t) { return true; };
  gpu::configure_cublaslt(settings);
  const RandomWeight weight = random_weight({Dtype::bf16, 40, 264, 0, 0}, random);
  const auto x = random.normals(size_t{65} * 264);
  const auto refused = device_with(Precision::bf16, "");
  const std::string_view before = refused->description();
  CHECK(multiply(*refused, weight, x, 65) ==
        multiply(*device_with(Precision::bf16, kernels::kNoCublasLt), weight, x, 65));
  CHECK(refused->description() ==
        "cuda emulated GPU, sm_90, bf16, cuBLASLt 13.1.0 (shapes of products that it refused: 1)");
  CHECK(before == "cuda emulated GPU, sm_90, bf16, cuBLASLt 13.1.0");
}

TEST_CASE("cuda: cuBLASLt loads its code before the card is full") {
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kRows = 68;
  for (const WeightCase& shape : {WeightCase{Dtype::bf16, 40, 264, 0, 0}, {Dtype::f8_e4m3, 144, 272, 128, 128}}) {
    CAPTURE(shape);
    gpu::CublasLtSettings settings = kThere;
    settings.code_bytes = 16ULL << 20;
    gpu::configure_cublaslt(settings);
    const auto device = device_with(Precision::fp8, "");
    const uint64_t before = products();
    // A plan takes all but what it knows of: the workspace, and here the numbers of the product.
    constexpr uint64_t kNumbers = 1 << 20;
    const auto others = device->allocate(device->memory().free_bytes - BlasLimits{}.total() - kNumbers);
    REQUIRE(others);
    const RandomWeight weight = random_weight(shape, random);
    (void)multiply(*device, weight, random.normals(size_t{kRows} * shape.in), kRows);
    CHECK(products() == before + 1);
    CHECK(device->description() == "cuda emulated GPU, sm_90, fp8, cuBLASLt 13.1.0");
  }
  gpu::configure_cublaslt({});
}

TEST_CASE("cuda: a card without memory for a first product by cuBLASLt is used, and one that fails in it is refused") {
  gpu::configure_cublaslt(kThere);
  gpu::configure_emulator({.seed = 1, .memory_bytes = 1 << 20});
  CHECK(kernels::make_cuda_device({.precision = Precision::fp8}).has_value());
  gpu::CublasLtSettings settings = kThere;
  settings.run_status = gpu::cublaslt::Status::execution_failed;
  gpu::configure_cublaslt(settings);
  gpu::configure_emulator({.seed = 1});
  const auto failed = kernels::make_cuda_device({.precision = Precision::bf16});
  REQUIRE_FALSE(failed);
  CHECK(failed.error().message.starts_with("the GPU has failed in cuBLASLt: a product"));
  gpu::configure_cublaslt({});
  gpu::configure_emulator({});
}

}  // namespace dspack::test::linear_blas_test
