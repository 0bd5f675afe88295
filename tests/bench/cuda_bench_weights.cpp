#include "tests/bench/cuda_bench_weights.h"

#include <algorithm>
#include <stdexcept>

#include "format/base/size.h"

namespace dspack::bench {
namespace {

constexpr uint32_t kBlock = 128;

}  // namespace

using kernels::Slice;
using kernels::Weight;

Slice scales(Memory& memory, uint32_t out, uint32_t in) {
  return memory.numbers(Dtype::f32, uint64_t{ceil_div(out, kBlock)} * ceil_div(in, kBlock));
}

Weight weight_of(const Shape& shape, Slice data, Slice scale) {
  const uint32_t block = shape.dtype == Dtype::f8_e4m3 ? kBlock : 0;
  return {{kernels::coding_of(shape.dtype).value(), shape.out, shape.in, block, block},
          {data, block > 0 ? scale : Slice{}}};
}

RoutedExperts::RoutedExperts(CudaBench& bench, Memory& memory)
    : hidden_(bench.sized<uint32_t>(7168, 128)), inner_(bench.sized<uint32_t>(2048, 128)) {
  const uint64_t matrix = uint64_t{hidden_} * inner_;
  const kernels::DeviceMemory device = bench.device().memory();
  const uint64_t room = device.free_bytes / 10 * 8 / (3 * matrix);  // the rest is for scratch and activations
  count_ = bench.sized<uint32_t>(static_cast<uint32_t>(std::min<uint64_t>(room, 256)), 8);
  if (count_ < 16 && !bench.options().quick) throw std::runtime_error("no memory for 16 experts");
  const Slice data = memory.numbers(Dtype::f8_e4m3, 3 * matrix * count_);
  const Slice wide = scales(memory, inner_, hidden_), tall = scales(memory, hidden_, inner_);
  const Shape in{"gate", inner_, hidden_, Dtype::f8_e4m3}, out{"down", hidden_, inner_, Dtype::f8_e4m3};
  std::vector<kernels::ExpertMatrices> experts;
  for (uint64_t i = 0; i < count_; ++i) {
    const Slice place = data.at(3 * matrix * i);
    experts.push_back({.gate = weight_of(in, place, wide),
                       .up = weight_of(in, place.at(matrix), wide),
                       .down = weight_of(out, place.at(2 * matrix), tall)});
  }
  auto table = bench.device().make_expert_table(experts);
  if (!table) throw std::runtime_error(table.error().message);
  table_ = std::move(*table);
}

Slice RoutedExperts::make_scratch(CudaBench& bench, Memory& memory, uint32_t tokens, uint32_t top_k) const {
  return memory.uninitialised(bench.device().experts_scratch_bytes(
      {.hidden = hidden_, .inner = inner_, .experts = count_, .top_k = top_k, .rows = tokens}));
}

}  // namespace dspack::bench
