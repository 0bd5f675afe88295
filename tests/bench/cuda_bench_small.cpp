// Operations whose time is that of a launch. Their data stays in the cache, as it does in a decode step. Their floor is
// bytes over bandwidth like that of all others; what they are to be compared with is the shortest launch, the first
// row.
#include <fmt/format.h>

#include "kernels/sample_noise.h"
#include "tests/bench/cuda_bench.h"

namespace dspack::bench {
namespace {

using kernels::Rows;
using kernels::Slice;

class Small {
 public:
  explicit Small(CudaBench& bench)
      : bench_(bench), memory_(bench.memory()), hidden_(bench.sized<uint32_t>(7168, 256)) {}

  void shortest() {
    const Rows x = memory_.rows(1, 32), y = memory_.rows(1, 32);
    time("add [32]: the shortest launch", 1, 12 * 32, [&] { queue().add(y, x); });
  }
  void norms_and_sums(uint32_t rows) {
    const Rows x = memory_.rows(rows, hidden_), y = memory_.rows(rows, hidden_);
    const Slice gain = memory_.numbers(Dtype::f32, hidden_);
    time(fmt::format("rms_norm [{}]", hidden_), rows, 8.0 * rows * hidden_,
         [&] { queue().rms_norm(x, gain, 1e-6F, y); });
    time(fmt::format("add [{}]", hidden_), rows, 12.0 * rows * hidden_, [&] { queue().add(y, x); });
    const auto inner = bench_.sized<uint32_t>(18432, 256);
    const Rows gate = memory_.rows(rows, inner), up = memory_.rows(rows, inner);
    time(fmt::format("silu_multiply [{}]", inner), rows, 12.0 * rows * inner, [&] { queue().silu_multiply(gate, up); });
    constexpr uint32_t kTop = 8;
    const Rows parts = memory_.rows(rows * kTop, hidden_);
    const Slice weights = memory_.rows(rows, kTop).data;
    time(fmt::format("combine {} x [{}]", kTop, hidden_), rows, 4.0 * (kTop + 1) * rows * hidden_,
         [&] { queue().combine(y, parts, weights, kTop); });
  }
  void rope(uint32_t rows) {
    constexpr uint32_t kDim = 64, kPositions = 64;
    const auto heads = bench_.sized<uint32_t>(128, 4);
    const kernels::RopeArgs args{.data = memory_.rows(rows, heads * kDim).data,
                                 .rows = rows,
                                 .heads = heads,
                                 .dim = kDim,
                                 .head_stride = kDim,
                                 .row_stride = heads * kDim,
                                 .cos_sin = memory_.rows(kPositions, kDim).data,
                                 .live = live(kPositions)};
    time(fmt::format("rope {} heads x {}, live position", heads, kDim), rows, 8.0 * rows * heads * kDim,
         [&] { queue().rope(args); });
  }
  void store(uint32_t rows) {
    constexpr uint32_t kWidth = 576, kPositions = 64;
    const Rows from = memory_.rows(rows, kWidth);
    const Slice to = memory_.uninitialised(uint64_t{kPositions} * kWidth * 2);
    time("store_rows [576] bf16, live position", rows, 6.0 * rows * kWidth,
         [&] { queue().store_rows(to, Dtype::bf16, from, live(kPositions)); });
    constexpr kernels::LatentShape kShape{.latent_dim = 512, .rope_dim = 64};
    const uint64_t row_bytes = kernels::fp8_row(kShape).bytes;
    const Slice fp8 = memory_.uninitialised(kPositions * row_bytes);
    time("store_latents [512 + 64], live position", rows, rows * (4.0 * kWidth + static_cast<double>(row_bytes)),
         [&] { queue().store_latents(fp8, kShape, from, live(kPositions)); });
  }
  void route(uint32_t rows) {
    constexpr uint32_t kExperts = 256, kTop = 8;
    const kernels::RouterArgs args{.logits = memory_.rows(rows, kExperts).data,
                                   .bias = memory_.numbers(Dtype::f32, kExperts),
                                   .ids = memory_.uninitialised(uint64_t{rows} * kTop * 4),
                                   .weights = memory_.uninitialised(uint64_t{rows} * kTop * 4),
                                   .rows = rows,
                                   .experts = kExperts,
                                   .top_k = kTop,
                                   .groups = 8,
                                   .groups_kept = 4,
                                   .scale = 2.5F};
    time("route 8 of 256, 4 of 8 groups", rows, 4.0 * rows * (2 * kExperts + 2 * kTop), [&] { queue().route(args); });
  }
  void argmax(uint32_t rows) {
    const auto vocab = bench_.sized<uint32_t>(129280, 300);
    const Rows logits = memory_.rows(rows, vocab);
    const Slice ids = memory_.uninitialised(uint64_t{rows} * 4);
    time(fmt::format("argmax [{}]", vocab), rows, 4.0 * rows * vocab, [&] { queue().argmax(logits, ids); });
  }
  void sample(uint32_t rows, std::string_view how, const kernels::SampleSettings& settings) {
    const auto vocab = bench_.sized<uint32_t>(129280, 300);
    const std::vector<kernels::NoiseKey> keys(rows);
    const kernels::SampleArgs args{.logits = memory_.rows(rows, vocab),
                                   .settings = memory_.upload(std::as_bytes(std::span(&settings, 1))),
                                   .keys = memory_.upload(std::as_bytes(std::span(keys))),
                                   .ids = memory_.uninitialised(uint64_t{rows} * 4)};
    time(fmt::format("sample [{}], {}: three launches", vocab, how), rows, 4.0 * rows * vocab,
         [&] { queue().sample(args); });
  }

 private:
  kernels::Queue& queue() { return bench_.queue(); }

  kernels::LivePosition live(uint32_t limit) {
    if (position_.empty()) {
      const uint32_t at = 17;
      position_ = memory_.upload(std::as_bytes(std::span(&at, 1)));
    }
    return {.value = position_, .limit = limit};
  }

  template <class Launch>
  void time(const std::string& what, uint32_t rows, double bytes, Launch launch) {
    bench_.print(what, rows, {.bytes = bytes}, bench_.seconds_per_launch(200, [&](uint32_t) { launch(); }));
  }

  CudaBench& bench_;
  Memory memory_;
  uint32_t hidden_;
  Slice position_;
};

}  // namespace

void measure_small(CudaBench& bench) {
  Small small(bench);
  small.shortest();
  for (const uint32_t rows : {1U, 2U, 8U}) {
    small.norms_and_sums(rows);
    small.rope(rows);
    small.store(rows);
    small.route(rows);
    small.argmax(rows);
    small.sample(rows, "all of it", {});
    small.sample(rows, "top-k 40, top-p 0.9", {.temperature = 0.8, .top_p = 0.9, .top_k = 40});
    small.sample(rows, "top-p 0.9", {.temperature = 0.2, .top_p = 0.9});
  }
}

}  // namespace dspack::bench
