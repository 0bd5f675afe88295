#include "kernels/cuda/experts/experts_blas.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/kernels/cuda/experts_lab.h"
#include "tests/kernels/put_experts.h"
#include "tests/support/emulated_gpu/emulated_cublaslt.h"

namespace dspack::test::experts_blas_test {
namespace {

namespace cuda = kernels::cuda;
using cuda::BlasLimits;
using cuda::BlasPath;
using gpu::cublaslt::DataType;
using kernels::Precision;

const gpu::CublasLtSettings kThere{.version = 130'100};
constexpr BlasLimits kLimits{.weight_bytes = 1 << 20, .input_bytes = 1 << 20, .library_bytes = 4 << 20};

/// Experts, tokens and their routing on the emulated GPU.
struct Run {
  ExpertsCase experts;
  Precision precision = Precision::bf16;
  BlasPath path = BlasPath::none;
  BlasLimits limits = kLimits;
};

const Run kInPlace{{Dtype::bf16, 5, 72, 40, 0, 0, 2}, Precision::bf16, BlasPath::bf16};
const Run kDecoded{{Dtype::f8_e4m3, 5, 272, 144, 128, 128, 2}, Precision::bf16, BlasPath::bf16_decoded};
const Run kBlockScaled{{Dtype::f8_e4m3, 5, 272, 144, 128, 128, 2}, Precision::fp8, BlasPath::fp8};

class ExpertsLab {
 public:
  ExpertsLab(const Run& run, const Routing& routing, Random& random)
      : run_(run),
        gpu_(random.below(1000)),
        blas_(use_, {.name = {}, .major = 9, .minor = 0}, run.precision, run.limits) {
    const ExpertsCase& c = run.experts;
    auto experts = random_experts(c, random);
    // Products with such scales are what BF16 has: decoding rounds nothing.
    for (RandomExpert& expert : experts) {
      for (RandomWeight* weight : {&expert.gate, &expert.up, &expert.down}) {
        for (float& scale : weight->scales)
          scale = std::exp2(std::nearbyint(std::log2(scale)));
      }
    }
    task_ = put_experts(gpu_, c, experts);
    entries_ = gpu_.get(task_.table, c.experts);
    constexpr uint32_t kGap = 4;
    stride_ = c.hidden + kGap;
    std::vector<float> x(size_t{routing.tokens} * stride_, poison());
    for (size_t i = 0; i < routing.x.size(); ++i)
      x[i / c.hidden * stride_ + i % c.hidden] = routing.x[i];
    task_.x = {.data = gpu_.put(x), .stride = stride_};
    task_.ids = gpu_.put(routing.ids);
    task_.weights = gpu_.put(routing.weights);
    task_.tokens = routing.tokens;
    shape_.hidden = c.hidden;
    shape_.inner = c.inner;
    shape_.experts = c.experts;
    shape_.top_k = c.top_k;
    shape_.rows = routing.tokens;
  }

  [[nodiscard]] const kernels::ExpertsShape& shape() const { return shape_; }
  [[nodiscard]] cuda::BlasUse& use() { return *use_; }
  /// What is in y before, and is added after the slots.
  void add_to(const std::vector<float>& before, const std::vector<float>& more) {
    before_ = before;
    task_.adds = true;
    task_.more = {.data = gpu_.put(more), .stride = shape_.hidden};
  }

  [[nodiscard]] std::vector<float> own() {
    return y_of([&](const cuda::ExpertsTask& task) { cuda::run_experts_tensor(gpu_.stream(), task, run_.precision); });
  }
  [[nodiscard]] std::vector<float> by_library(std::span<const kernels::ExpertGroup> groups) {
    return y_of([&](const cuda::ExpertsTask& task) { CHECK(runs(task, groups, false)); });
  }
  [[nodiscard]] bool is_refused(std::span<const kernels::ExpertGroup> groups) {
    bool is_done = true;
    const auto y = y_of([&](const cuda::ExpertsTask& task) { is_done = runs(task, groups, false); });
    CHECK((is_done || std::ranges::all_of(y, is_poison)));
    return !is_done;
  }
  /// The rows of `parts` after calls for some groups each.
  [[nodiscard]] std::vector<float> parts_by_library(std::span<const kernels::ExpertGroup> groups, size_t at_once) {
    kernels::ExpertsShape shape = shape_;
    shape.parts_only = true;
    const size_t rows = size_t{shape_.rows} * shape_.top_k;
    cuda::ExpertsTask task = task_;
    task.scratch = scratch(shape);
    float* parts = gpu_.poisoned(rows * (shape_.hidden + 3));
    task.parts = {.data = parts, .stride = shape_.hidden + 3};
    for (size_t first = 0; first < groups.size(); first += at_once)
      CHECK(runs(task, groups.subspan(first, std::min(at_once, groups.size() - first)), true));
    return dense(gpu_.get(parts, rows * (shape_.hidden + 3)), rows, shape_.hidden, shape_.hidden + 3);
  }

 private:
  template <class Operation>
  std::vector<float> y_of(const Operation& operation) {
    cuda::ExpertsTask task = task_;
    task.scratch = scratch(shape_);
    std::vector<float> before(size_t{shape_.rows} * stride_, poison());
    for (size_t i = 0; i < before_.size(); ++i)
      before[i / shape_.hidden * stride_ + i % shape_.hidden] = before_[i];
    float* y = gpu_.put(before);
    task.y = {.data = y, .stride = stride_};
    operation(task);
    return dense(gpu_.get(y, before.size()), shape_.rows, shape_.hidden, stride_);
  }
  [[nodiscard]] void* scratch(const kernels::ExpertsShape& shape) {
    return gpu_.put(std::vector<uint8_t>(cuda::experts_scratch_bytes(shape, run_.precision), 0xff));
  }
  [[nodiscard]] bool runs(const cuda::ExpertsTask& task, std::span<const kernels::ExpertGroup> groups,
                          bool parts_only) {
    kernels::ExpertsShape shape = shape_;
    shape.parts_only = parts_only;
    const uint32_t rows = cuda::choose_piece_rows(run_.path, shape, run_.limits);
    REQUIRE(rows > 0);
    const cuda::ExpertsBlasPlan plan = cuda::plan_experts_blas(groups, shape_.top_k, parts_only, rows);
    pieces = plan.pieces.size();
    return blas_.run(gpu_.stream(), {.experts = task,
                                     .entries = entries_,
                                     .parts_only = parts_only,
                                     .path = run_.path,
                                     .plan = plan,
                                     .words = gpu_.put(plan.words)});
  }

  Run run_;
  GpuLab gpu_;
  std::shared_ptr<cuda::BlasUse> use_ =
      std::make_shared<cuda::BlasUse>(gpu::cublaslt::open_library(gpu::kEmulatedCublasLt).value());
  cuda::LinearBlas blas_;
  cuda::ExpertsTask task_;
  std::vector<cuda::ExpertEntry> entries_;
  kernels::ExpertsShape shape_;
  uint32_t stride_ = 0;
  std::vector<float> before_;

 public:
  size_t pieces = 0;  // of the last plan
};

/// Routings of which some experts have nothing, or nearly all.
std::vector<Routing> routings(const ExpertsCase& c, uint32_t tokens, Random& random) {
  std::vector<Routing> all{random_routing(c, tokens, random)};
  for (const uint32_t favourite : {0U, c.experts - 1}) {
    Routing& uneven = all.emplace_back(random_routing(c, tokens, random));
    for (uint32_t i = 0; i < uneven.ids.size(); ++i)
      uneven.ids[i] = i % 23 == 5 ? 1 : favourite;
  }
  return all;
}

/// The same roundings of the same inputs. Sums differ in their order, and so now and then a rounding of what down gets
/// falls the other way: one of a row's hundred values and more changes by up to 2^-4 in E4M3, by 2^-8 in BF16. If that
/// is a row's largest, it has a tenth of the row's energy: of one row in forty that is (2^-8)^2 / 10 / 40 = 4e-8 in
/// BF16, of many rows some times as much (2e-7 was seen), and 2^8 times as much in E4M3. A row at a wrong place, of
/// some hundreds, would bring 1e-3 and more.
void check_alike(const std::vector<float>& got, const std::vector<float>& own, uint32_t cols, Precision precision) {
  const ErrorReport report = compare(got, Doubles(own.begin(), own.end()), cols);
  CAPTURE(report);
  CHECK(report.not_a_number == 0);
  CHECK_FALSE(report.count_mismatch);
  CHECK(report.nmse < (precision == Precision::fp8 ? 5e-5 : 1e-6));
}

uint64_t products(const Run& run) {
  const gpu::CublasLtCounts counts = gpu::cublaslt_counts();
  CHECK((run.path == BlasPath::fp8 ? counts.bf16_products : counts.f8_products) == 0);
  return counts.bf16_products + counts.f8_products;
}

cuda::ExpertForm form_of_experts(kernels::Coding coding, uint32_t hidden, uint32_t inner) {
  const uint32_t block = coding == kernels::Coding::bf16 ? 0 : 128;
  return {.gate_up = {{coding, inner, hidden, block, block}, true},
          .down = {{coding, hidden, inner, block, block}, true}};
}

}  // namespace

TEST_CASE("cuda: experts by cuBLASLt equal those of this program's kernels, whatever the routing") {
  Random random;
  CAPTURE(random.seed());
  BlasLimits small = kLimits;
  small.input_bytes = 40 << 10;
  small.weight_bytes = 40 << 10;
  for (Run run : {kInPlace, kDecoded, kBlockScaled}) {
    for (const bool is_cut : {false, true}) {
      run.limits = is_cut ? small : kLimits;
      for (const Routing& routing : routings(run.experts, is_cut ? 90 : 41, random)) {
        gpu::configure_cublaslt(kThere);
        {
          ExpertsLab lab(run, routing, random);
          const auto sorted = cuda::sort_assignments(routing.ids, run.experts.experts);
          const auto got = lab.by_library(sorted.groups);
          CHECK(products(run) >= 3 * sorted.groups.size());
          CHECK((!is_cut || lab.pieces > 2));
          check_alike(got, lab.own(), run.experts.hidden, run.precision);
          const size_t values = size_t{routing.tokens} * run.experts.hidden;
          lab.add_to(random.normals(values), random.normals(values));
          check_alike(lab.by_library(sorted.groups), lab.own(), run.experts.hidden, run.precision);
        }
        CHECK(gpu::cublaslt_counts().descriptors == 0);
      }
    }
  }
}

TEST_CASE("cuda: some experts by cuBLASLt are the same in whatever calls they are computed, and nothing else changes") {
  Random random;
  CAPTURE(random.seed());
  for (Run run : {kInPlace, kDecoded, kBlockScaled}) {
    run.experts.inner *= 2;  // more inner values: room for what down gives
    gpu::configure_cublaslt(kThere);
    for (const Routing& routing : routings(run.experts, 150, random)) {
      ExpertsLab lab(run, routing, random);
      const auto sorted = cuda::sort_assignments(routing.ids, run.experts.experts);
      const std::span<const kernels::ExpertGroup> but_last = std::span(sorted.groups).first(sorted.groups.size() - 1);
      const auto together = lab.parts_by_library(but_last, but_last.size());
      CHECK(first_difference(lab.parts_by_library(but_last, 1), together) == together.size());
      Doubles sums(size_t{routing.tokens} * run.experts.hidden, 0.0);
      const auto all = lab.parts_by_library(sorted.groups, sorted.groups.size());
      for (size_t part = 0; part < routing.ids.size(); ++part) {
        const bool is_left = routing.ids[part] == sorted.groups.back().entry;
        for (size_t i = 0; i < run.experts.hidden; ++i) {
          const float value = together[part * run.experts.hidden + i];
          REQUIRE(is_poison(value) == is_left);
          REQUIRE((is_left || value == all[part * run.experts.hidden + i]));
          sums[part / run.experts.top_k * run.experts.hidden + i] +=
              static_cast<double>(routing.weights[part]) * static_cast<double>(all[part * run.experts.hidden + i]);
        }
      }
      check_alike(lab.own(), std::vector<float>(sums.begin(), sums.end()), run.experts.hidden, run.precision);
    }
  }
}

TEST_CASE("cuda: experts of which cuBLASLt refuses a shape, or a product, are left to others") {
  Random random;
  CAPTURE(random.seed());
  for (const Run& run : {kInPlace, kDecoded, kBlockScaled}) {
    const Routing routing = random_routing(run.experts, 60, random);
    const auto sorted = cuda::sort_assignments(routing.ids, run.experts.experts);
    gpu::CublasLtSettings settings = kThere;
    const uint32_t inner = run.experts.inner;
    settings.refuses = [=](DataType, uint64_t, uint64_t, uint64_t k) { return k == inner; };
    gpu::configure_cublaslt(settings);
    ExpertsLab lab(run, routing, random);
    CHECK(lab.is_refused(sorted.groups));
    CHECK(products(run) == 0);
    CHECK(lab.use().refused_shapes == 1);
    settings.refuses = {};
    settings.run_status = gpu::cublaslt::Status::alloc_failed;
    gpu::configure_cublaslt(settings);
    ExpertsLab full(run, routing, random);
    CHECK(full.is_refused(sorted.groups));
    CHECK_FALSE(gpu::failure().has_value());
  }
}

TEST_CASE("cuda: which experts are cuBLASLt's, and from how many rows on") {
  const cuda::BlasCard hopper{.has_block_scaling = true};
  const auto v3 = form_of_experts(kernels::Coding::f8_e4m3, 7168, 2048);
  CHECK(cuda::choose_experts_blas(v3, Precision::exact, hopper).path == BlasPath::none);
  const auto fp8 = cuda::choose_experts_blas(v3, Precision::fp8, hopper);
  CHECK(fp8.path == BlasPath::fp8);
  CHECK(fp8.least_rows == 12);
  const auto decoded = cuda::choose_experts_blas(v3, Precision::fp8, {});
  CHECK(decoded.path == BlasPath::bf16_decoded);
  CHECK(decoded.least_rows == 114);
  CHECK(cuda::choose_experts_blas(v3, Precision::bf16, hopper).least_rows == 114);
  const auto lite =
      cuda::choose_experts_blas(form_of_experts(kernels::Coding::bf16, 2048, 1408), Precision::fp8, hopper);
  CHECK(lite.path == BlasPath::bf16);
  CHECK(lite.least_rows == 60);
  auto mixed = v3;
  mixed.down = form_of_experts(kernels::Coding::bf16, 7168, 2048).down;
  CHECK(cuda::choose_experts_blas(mixed, Precision::fp8, hopper).path == BlasPath::none);
  auto misplaced = v3;
  misplaced.gate_up.starts_aligned = false;
  CHECK(cuda::choose_experts_blas(misplaced, Precision::fp8, hopper).path == BlasPath::none);
}

TEST_CASE("cuda: pieces of experts have room where they lie") {
  for (const BlasPath path : {BlasPath::bf16, BlasPath::bf16_decoded, BlasPath::fp8}) {
    for (const bool parts_only : {false, true}) {
      for (const uint32_t rows : {1U, 20U, 100U, 1000U, 4096U, 30'000U}) {
        for (const auto& [hidden, inner] : {std::pair{7168U, 2048U}, {2048U, 1408U}, {256U, 1024U}}) {
          kernels::ExpertsShape shape{.hidden = hidden, .inner = inner, .experts = 64, .top_k = 6, .rows = rows};
          shape.parts_only = parts_only;
          const uint64_t most = cuda::choose_piece_rows(path, shape, {});
          CAPTURE(most);
          CHECK((rows < 100 || most > 0));
          CHECK(most % cuda::kSegmentUnit == 0);
          CHECK(cuda::blas_input_bytes(path, static_cast<uint32_t>(most), hidden) <= BlasLimits{}.input_bytes + 256);
          const uint64_t assignments = uint64_t{rows} * shape.top_k;
          CHECK(2 * most * inner <= assignments * inner);
          CHECK(cuda::blas_input_bytes(path, static_cast<uint32_t>(most), inner) <=
                cuda::rounded_bytes(assignments, inner));
          if (parts_only && most > 0) CHECK((most + cuda::kPartsPadding) * hidden <= assignments * inner);
        }
      }
    }
  }
}

TEST_CASE("cuda: a plan of experts has each assignment once, and cuts an expert alike whatever comes with it") {
  Random random;
  CAPTURE(random.seed());
  constexpr uint32_t kExperts = 7, kTopK = 3, kTokens = 400, kRows = 320;
  std::vector<uint32_t> ids(size_t{kTokens} * kTopK);
  for (uint32_t& id : ids)
    id = random.below(3) == 0 ? random.below(kExperts) : 4;  // more than kRows of one
  const auto sorted = cuda::sort_assignments(ids, kExperts);
  for (const bool parts_only : {false, true}) {
    const auto plan = cuda::plan_experts_blas(sorted.groups, kTopK, parts_only, kRows);
    CHECK(plan.words.size() * sizeof(uint32_t) < 1 << 20);
    std::set<uint32_t> seen;
    uint32_t place = 0;
    uint32_t first_row = 0;
    for (const cuda::ExpertsPiece& piece : plan.pieces) {
      CHECK((piece.place == place && piece.first_row == first_row && piece.rows <= kRows));
      uint32_t row = 0;
      for (const cuda::ExpertSegment& segment : piece.segments) {
        CHECK((segment.place == place && segment.at.first == row && segment.at.rows % cuda::kSegmentUnit == 0));
        CHECK(segment.at.rows - segment.count < cuda::kPartsPadding);
        for (uint32_t i = 0; i < segment.at.rows; ++i) {
          const uint32_t at = piece.first_row + row + i;
          const uint32_t* unit = &plan.words[plan.segments_at + at / cuda::kSegmentUnit * 2];
          CHECK((unit[0] == row && unit[1] == segment.at.rows));
          if (i >= segment.count) {
            CHECK(plan.words[at] == cuda::kNoSource);
            continue;
          }
          const uint32_t assignment = sorted.order[segment.place + i];
          CHECK((ids[assignment] == segment.entry && plan.words[at] == assignment / kTopK));
          CHECK(plan.words[plan.places_at + (parts_only ? segment.place + i : assignment)] ==
                (parts_only ? assignment : segment.place + i));
          CHECK(seen.insert(assignment).second);
        }
        row += segment.at.rows;
        place += segment.count;
      }
      CHECK(row == piece.rows);
      first_row += piece.rows;
    }
    CHECK(seen.size() == ids.size());
    for (const kernels::ExpertGroup& group : sorted.groups) {
      std::vector<uint32_t> alone, among;
      const auto collect = [&](const cuda::ExpertsBlasPlan& from, std::vector<uint32_t>& rows) {
        for (const cuda::ExpertsPiece& piece : from.pieces) {
          for (const cuda::ExpertSegment& segment : piece.segments)
            if (segment.entry == group.entry) rows.insert(rows.end(), {segment.count, segment.at.rows});
        }
      };
      collect(cuda::plan_experts_blas({&group, 1}, kTopK, true, kRows), alone);
      collect(plan, among);
      CHECK(alone == among);
    }
  }
  ids[5] = kExperts;
  CHECK(cuda::sort_assignments(ids, kExperts).groups.empty());
}

// Through ops.h
// --------------------------------------------------------------------------------------------------------------

namespace {

using Refuses = std::function<bool(DataType, uint64_t, uint64_t, uint64_t)>;

/// A device with a cuBLASLt that refuses some shapes.
Lab make_lab(Precision precision, const Refuses& refuses) {
  gpu::CublasLtSettings settings = kThere;
  settings.refuses = refuses;
  gpu::configure_cublaslt(settings);
  gpu::configure_emulator({.seed = 1});
  auto device = kernels::make_cuda_device({.precision = precision, .cublaslt = gpu::kEmulatedCublasLt});
  REQUIRE(device.has_value());
  return Lab("emulated " + std::string(to_string(precision)), std::move(*device));
}

bool refuse_all(DataType, uint64_t, uint64_t, uint64_t) {
  return true;
}

/// So few and small that the emulated GPU computes them, and as many rows as such experts need for the library.
constexpr uint32_t kPromptTokens = 1320;

}  // namespace

TEST_CASE("cuda: a prompt's experts are cuBLASLt's where it does not refuse them, recorded steps' are not") {
  for (const Precision precision : {Precision::bf16, Precision::fp8}) {
    CAPTURE(to_string(precision));
    Random random;
    CAPTURE(random.seed());
    const PartsCase prompt{Dtype::f8_e4m3, 1, 512, 256, 128, 1, kPromptTokens};
    Random again = random;
    Lab without = make_lab(precision, refuse_all);
    const uint64_t warmed = gpu::cublaslt_counts().bf16_products + gpu::cublaslt_counts().f8_products;
    const auto own = PutExperts(without, prompt, again).at_once(without);
    CHECK(gpu::cublaslt_counts().bf16_products + gpu::cublaslt_counts().f8_products == warmed);
    CHECK(without.device().description().ends_with("(shapes of products that it refused: " +
                                                   std::string(precision == Precision::fp8 ? "2)" : "1)")));
    again = random;
    Lab with = make_lab(precision, {});
    const PutExperts experts(with, prompt, again);
    const gpu::CublasLtCounts before = gpu::cublaslt_counts();
    const kernels::ExpertsArgs args = experts.args(with);
    const auto step = with.queue().record([&] { with.queue().run_experts(args); });
    CHECK(gpu::cublaslt_counts().heuristics == before.heuristics);
    const auto got = experts.at_once(with);
    const gpu::CublasLtCounts after = gpu::cublaslt_counts();
    CHECK((precision == Precision::fp8 ? after.f8_products - before.f8_products
                                       : after.bf16_products - before.bf16_products) >= 3);
    // Three weights rounded to BF16, some 2e-6 each, of which SiLU makes more.
    const ErrorReport report = compare(got, Doubles(own.begin(), own.end()), prompt.hidden);
    CHECK_MESSAGE((report.not_a_number == 0 && report.nmse < (precision == Precision::fp8 ? 1e-5 : 3e-5)), report);
  }
}

TEST_CASE("cuda: a prompt's experts in FP8 that cuBLASLt refuses go to it in BF16") {
  Random random;
  CAPTURE(random.seed());
  Lab lab =
      make_lab(Precision::fp8, [](DataType type, uint64_t, uint64_t, uint64_t) { return type != DataType::bf16; });
  const PutExperts experts(lab, {Dtype::f8_e4m3, 1, 512, 256, 128, 1, kPromptTokens}, random);
  const uint64_t before = gpu::cublaslt_counts().bf16_products;
  const auto got = experts.at_once(lab);
  CHECK(gpu::cublaslt_counts().bf16_products >= before + 3);
  CHECK(std::ranges::none_of(got, [](float value) { return std::isnan(value); }));
}

TEST_CASE("cuda: of some experts of a prompt those with many rows are cuBLASLt's") {
  Random random;
  CAPTURE(random.seed());
  const PartsCase prompt{Dtype::f8_e4m3, 2, 512, 256, 128, 2, kPromptTokens};
  constexpr uint32_t kRows = kPromptTokens * 2;
  const auto parts_of = [&](Lab& lab) {
    Random again = random;
    const PutExperts experts(lab, prompt, again);
    std::vector<uint32_t> many, few;
    for (uint32_t part = 0; part < kRows; ++part) {
      if (experts.ids[part] == 1) many.push_back(part);
      if (experts.ids[part] == 0 && part < 40) few.push_back(part);
    }
    const std::vector<kernels::ExpertGroup> groups{{.entry = 0, .parts = few}, {.entry = 1, .parts = many}};
    const kernels::Rows parts{.data = lab.poisoned(size_t{kRows} * 512), .rows = kRows, .cols = 512, .stride = 512};
    lab.queue().run_expert_parts({.table = experts.table.get(),
                                  .x = experts.x,
                                  .groups = groups,
                                  .top_k = 2,
                                  .scratch = {.buffer = experts.parts_scratch.get(), .offset_bytes = 0},
                                  .parts = parts});
    return lab.get(parts.data, size_t{kRows} * 512);
  };
  Lab without = make_lab(Precision::fp8, refuse_all);
  const auto own = parts_of(without);
  Lab with = make_lab(Precision::fp8, {});
  const uint64_t before = gpu::cublaslt_counts().f8_products;
  const auto got = parts_of(with);
  CHECK(gpu::cublaslt_counts().f8_products == before + 6);  // of one expert, in two pieces
  for (size_t i = 0; i < got.size(); ++i)
    REQUIRE(is_poison(got[i]) == is_poison(own[i]));
  check_alike(got, own, 512, Precision::fp8);
}

}  // namespace dspack::test::experts_blas_test
