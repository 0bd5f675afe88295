#include <algorithm>
#include <numeric>

#include "kernels/cpu/cpu_peak.h"
#include "tests/kernels/lab.h"
#include "tests/support/numeric.h"

// A sanitizer must let an impossible allocation fail, as it does without one.
extern "C" const char* __asan_default_options() {  // NOLINT: the name is the sanitizer's
  return "allocator_may_return_null=1";
}

namespace dspack::test::device_test {
namespace {

using kernels::Rows;

TEST_CASE("cpu device: says which instruction set and how many threads run") {
  for (const kernels::InstructionSet& set : kernels::instruction_sets()) {
    const std::string name(set.ops->name);
    if (!runs_here(name)) {
      MESSAGE("not run on this machine: the kernel tests for " << name);
      continue;
    }
    auto device = kernels::make_cpu_device({.threads = 3, .instruction_set = name});
    REQUIRE(device.has_value());
    CHECK((*device)->description() == "cpu " + name + ", 3 threads");
  }
  auto unknown = kernels::make_cpu_device({.threads = 1, .instruction_set = "mmx"});
  REQUIRE_FALSE(unknown.has_value());
  CHECK(unknown.error().kind == ErrorKind::unsupported);
}

TEST_CASE("cpu device: memory is aligned, and too much of it is an error") {
  Lab lab("scalar");
  for (const uint64_t bytes : {0ULL, 1ULL, 100ULL, 70000ULL, 9000001ULL}) {
    CAPTURE(bytes);
    auto buffer = lab.device().allocate(bytes);
    REQUIRE(buffer.has_value());
    CHECK((*buffer)->size_bytes() == bytes);
    const auto address = reinterpret_cast<uintptr_t>(kernels::host_bytes(**buffer).data());
    CHECK(address % (bytes < 65536 ? 64 : 4096) == 0);
  }
  for (const uint64_t bytes : {UINT64_MAX, UINT64_MAX / 2 + 2, uint64_t{1} << 62}) {
    auto buffer = lab.device().allocate(bytes);
    REQUIRE_FALSE(buffer.has_value());
    CHECK(buffer.error().kind == ErrorKind::budget);
  }
}

TEST_CASE("cpu queue: upload, copy and download move bytes, overlapping or none") {
  Lab lab("scalar");
  std::vector<float> values(100);
  std::iota(values.begin(), values.end(), 0.0F);
  const kernels::Slice a = lab.put(values);
  const kernels::Slice b = lab.poisoned(100);
  lab.queue().copy(b, a, 400);
  CHECK(lab.get(b, 100) == values);
  lab.queue().copy(b.at(4), b, 396);
  CHECK(lab.get(b, 3) == std::vector<float>{0, 0, 1});
  CHECK(lab.get(b, 100).back() == 98);
  lab.queue().copy({}, {}, 0);
  lab.queue().upload({}, {});
}

TEST_CASE("gather_rows and scatter_rows: move the rows that the index names") {
  Lab lab("scalar");
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kCols = 13;
  const auto x = random.normals(size_t{6} * kCols);
  const std::vector<uint32_t> index{4, 0, 4, 5};
  const Rows from{lab.put(x), 6, kCols, kCols};
  const Rows picked{lab.poisoned(size_t{4} * (kCols + 1)), 4, kCols, kCols + 1};
  lab.queue().gather_rows(picked, from, index);
  const auto rows = dense(lab.get(picked.data, size_t{4} * (kCols + 1)), 4, kCols, kCols + 1);
  for (size_t i = 0; i < rows.size(); ++i)
    CHECK(rows[i] == x[index[i / kCols] * kCols + i % kCols]);

  const std::vector<uint32_t> places{5, 1};
  const Rows target{lab.poisoned(size_t{6} * kCols), 6, kCols, kCols};
  lab.queue().scatter_rows(target, {picked.data, 2, kCols, kCols + 1}, places);
  const auto written = lab.get(target.data, size_t{6} * kCols);
  for (size_t i = 0; i < written.size(); ++i) {
    const size_t row = i / kCols;
    if (row == 5) CHECK(written[i] == x[4 * kCols + i % kCols]);
    if (row == 1) CHECK(written[i] == x[i % kCols]);
    if (row != 1 && row != 5) CHECK(is_poison(written[i]));
  }
}

/// What select_cpu_ops must do, from the list of sets alone.
void check_selection(kernels::CpuFeatures have, const std::string& forced) {
  CAPTURE(have.avx2);
  CAPTURE(have.avx512);
  CAPTURE(have.avxvnni);
  CAPTURE(have.avx512vnni);
  CAPTURE(have.vbmi);
  CAPTURE(have.avx512bf16);
  CAPTURE(have.amx);
  CAPTURE(forced);
  const auto sets = kernels::instruction_sets();
  const auto wanted = std::ranges::find_if(sets, [&](const kernels::InstructionSet& set) {
    return set.runs_on(have) && (forced.empty() || set.ops->name == forced);
  });
  const auto got = kernels::select_cpu_ops(have, forced);
  CHECK(got.has_value() == (wanted != sets.end()));
  if (got && wanted != sets.end()) CHECK(*got == wanted->ops);
  if (!got) CHECK(got.error().kind == ErrorKind::unsupported);
}

TEST_CASE("select_cpu_ops: every combination of features and wishes") {
  bool kernels::CpuFeatures::*const features[] = {&kernels::CpuFeatures::neondot,    &kernels::CpuFeatures::avx2,
                                                  &kernels::CpuFeatures::avxvnni,    &kernels::CpuFeatures::avx512,
                                                  &kernels::CpuFeatures::avx512vnni, &kernels::CpuFeatures::vbmi,
                                                  &kernels::CpuFeatures::avx512bf16, &kernels::CpuFeatures::amx};
  for (uint32_t some = 0; some < 1U << std::size(features); ++some) {
    kernels::CpuFeatures have;
    for (uint32_t i = 0; i < std::size(features); ++i)
      have.*features[i] = (some >> i & 1U) != 0;
    for (const char* forced : {"", "AVX2", "none"})
      check_selection(have, forced);
    for (const kernels::InstructionSet& set : kernels::instruction_sets())
      check_selection(have, std::string(set.ops->name));
    CHECK(kernels::select_cpu_ops(have, "scalar").has_value());
  }
}

TEST_CASE("peak of a CPU: of every instruction set that runs here, in its precisions") {
  for (const kernels::InstructionSet& set : kernels::instruction_sets()) {
    if (!set.runs_on(kernels::detect_cpu_features())) continue;
    CHECK(set.ops->multiply_adds(3) > 0);
    CHECK(set.ops->multiply_adds(6) == 2 * set.ops->multiply_adds(3));
    REQUIRE(set.ops->int8 != nullptr);
    for (const kernels::RoundedOps* rounded : {set.ops->bf16, set.ops->tiles, set.ops->int8})
      if (rounded != nullptr) CHECK(rounded->multiply_adds(6) == 2 * rounded->multiply_adds(3));
    for (const auto precision :
         {kernels::Precision::exact, kernels::Precision::bf16, kernels::Precision::amx, kernels::Precision::int8}) {
      if (precision == kernels::Precision::amx && set.ops->tiles == nullptr) continue;
      const auto peak = kernels::measure_cpu_peak(
          {.threads = 2, .instruction_set = std::string(set.ops->name), .precision = precision},
          {.seconds = 0.01, .bytes = 1 << 20});
      REQUIRE(peak.has_value());
      CHECK(peak->bytes_per_second > 0);
      CHECK(peak->operations_per_second > 0);
      CHECK(peak->exact_operations_per_second > 0);
    }
  }
  CHECK(kernels::measure_cpu_peak({.threads = 1, .instruction_set = "mmx"}, {.seconds = 0.01}).error().kind ==
        ErrorKind::unsupported);
  kernels::Workers workers(3);
  std::vector<uint64_t> words(1000);
  std::iota(words.begin(), words.end(), uint64_t{1});
  CHECK(kernels::sum_words(workers, std::as_bytes(std::span(words))) == 500500);
}

TEST_CASE("instruction sets: complete tables, the scalar one last and without needs") {
  for (const kernels::InstructionSet& set : kernels::instruction_sets()) {
    const kernels::CpuOps& ops = *set.ops;
    CHECK_FALSE(ops.name.empty());
    for (size_t coding = 0; coding < kernels::kCodings; ++coding)
      CHECK((ops.linear[coding] != nullptr && ops.columns[coding] != nullptr));
    CHECK((ops.rms_norm != nullptr && ops.silu_multiply != nullptr && ops.add != nullptr && ops.combine != nullptr &&
           ops.attend_f32 != nullptr && ops.attend_bf16 != nullptr && ops.attend_f16 != nullptr));
  }
  const kernels::InstructionSet& last = kernels::instruction_sets().back();
  CHECK(last.ops->name == "scalar");
  CHECK(last.runs_on({}));
}

}  // namespace
}  // namespace dspack::test::device_test
