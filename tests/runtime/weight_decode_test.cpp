// Every stored form means what an independent decoder says, bit for bit: tests/data/weight_formats holds matrices that
// the formats' own libraries have packed, and the FP32 values that these read (tests/tools/weight_formats/README.md).
#include <cstring>

#include "kernels/cpu/cpu_device.h"
#include "runtime/weights/weight_group.h"
#include "tests/runtime/support/open_checkpoint.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::runtime::weight_decode_test {
namespace {

using test::RawTensor;
using test::required;

/// A checkpoint on the CPU.
struct OnCpu {
  explicit OnCpu(const std::filesystem::path& folder) : access(test::open_checkpoint(folder)) {
    device = required(kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
    queue = device->make_queue();
    REQUIRE(access->open_catalogue(1, {}));
    REQUIRE(access->open_weights({.io = IoMethod::buffered}, {}));
  }

  /// The FP32 values of a matrix, read by multiplying with unit vectors.
  Result<std::vector<float>> values_of(const std::string& name, uint32_t out, uint32_t in,
                                       const format::Quantization& stored = {}) {
    WeightGroup group({.device = *device, .queue = *queue, .access = *access, .quantization = stored});
    Linear linear;
    TRY(group.add_linear(&linear, name, out, in));
    TRY_ASSIGN(const auto weights, group.load(WeightPurpose::always_needed, {}));
    std::vector<float> unit(size_t{in} * in, 0.0F);
    for (size_t i = 0; i < in; ++i)
      unit[i * in + i] = 1;
    const auto x = required(device->allocate(unit.size() * sizeof(float)));
    const auto y = required(device->allocate(uint64_t{in} * out * sizeof(float)));
    queue->upload({.buffer = x.get()}, std::as_bytes(std::span(unit)));
    linear.apply(*queue, {.data = {.buffer = x.get()}, .rows = in, .cols = in, .stride = in},
                 {.data = {.buffer = y.get()}, .rows = in, .cols = out, .stride = out});
    queue->synchronize();
    const std::span columns{reinterpret_cast<const float*>(y->host().data()), size_t{in} * out};
    std::vector<float> values(columns.size());
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = columns[i % in * out + i / in];
    return values;
  }

  std::unique_ptr<CheckpointAccess> access;
  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<kernels::Queue> queue;
};

std::vector<float> read_floats(CheckpointAccess& access, const format::TensorEntry& tensor) {
  std::vector<float> values(tensor.range.size() / sizeof(float));
  REQUIRE(access.read(tensor, 0, std::as_writable_bytes(std::span(values)), WeightPurpose::always_needed, {}));
  return values;
}

constexpr std::string_view kExpected = ".expected";

/// What config.json would say of a module, where tensors do not show it.
format::Quantization said_of(std::string_view module) {
  if (!module.starts_with("gptq")) return {};
  const auto has = [&](std::string_view part) { return module.find(part) != std::string_view::npos; };
  return {.ordered = has("ordered"), .zero_offset = has("_v2") ? 0U : 1U};
}

TEST_CASE("weight formats: every matrix has the values that its format's own library reads") {
  OnCpu place(std::filesystem::path(DSPACK_TEST_DATA) / "weight_formats");
  size_t matrices = 0;
  for (const format::TensorEntry& tensor : place.access->catalogue().tensors()) {
    if (!tensor.name.ends_with(kExpected)) continue;
    const std::string module = tensor.name.substr(0, tensor.name.size() - kExpected.size());
    CAPTURE(module);
    const auto out = static_cast<uint32_t>(tensor.shape[0]);
    const auto in = static_cast<uint32_t>(tensor.shape[1]);
    const auto values = place.values_of(module + ".weight", out, in, said_of(module));
    CHECK_MESSAGE(values, (values ? "" : values.error().message));
    if (!values) continue;
    const std::vector<float> wanted = read_floats(*place.access, tensor);
    REQUIRE(values->size() == wanted.size());
    size_t wrong = 0;
    for (size_t i = 0; i < wanted.size(); ++i)
      wrong += (*values)[i] == wanted[i] ? 0 : 1;  // zeros may differ in their sign
    CHECK(wrong == 0);
    ++matrices;
  }
  CHECK(matrices >= 26);
}

}  // namespace
}  // namespace dspack::runtime::weight_decode_test
