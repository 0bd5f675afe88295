// linear() of a device, from numbers of the host to numbers of the host.
// Threads: as the device. Errors: fail the test case.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <span>
#include <vector>

#include "tests/kernels/weights.h"

namespace dspack::test {

/// On a queue of its own; rows of x and of the result lie one behind the other, the result is poisoned before.
inline std::vector<float> multiply(kernels::Device& device, const RandomWeight& weight, const std::vector<float>& x,
                                   uint32_t rows) {
  std::vector<std::unique_ptr<kernels::Buffer>> keep;
  const auto queue = device.make_queue();
  const auto put = [&](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    auto buffer = device.allocate(bytes.size());
    REQUIRE(buffer.has_value());
    keep.push_back(std::move(*buffer));
    queue->upload({keep.back().get(), 0}, bytes);
    queue->synchronize();
    return kernels::Slice{keep.back().get(), 0};
  };
  const WeightCase& shape = weight.shape;
  std::vector<float> y(size_t{rows} * shape.out, poison());
  const kernels::Slice to = put(y);
  queue->linear({form_of(shape), {put(weight.bytes), weight.scales.empty() ? kernels::Slice{} : put(weight.scales)}},
                {.data = put(x), .rows = rows, .cols = shape.in, .stride = shape.in},
                {.data = to, .rows = rows, .cols = shape.out, .stride = shape.out});
  queue->download(std::as_writable_bytes(std::span(y)), to);
  queue->synchronize();
  return y;
}

}  // namespace dspack::test
