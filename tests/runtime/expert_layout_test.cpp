// How experts lie in a device's memory: as in a slot of the host's, so that few copies bring one.
#include "runtime/experts/expert_layout.h"

#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "format/base/size.h"
#include "format/json.h"
#include "kernels/cpu/cpu_device.h"
#include "runtime/budget/link_trial.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/temp_folder.h"

namespace dspack::runtime::expert_layout_test {
namespace {

constexpr uint32_t kHidden = 1024;
constexpr uint32_t kInner = 512;
constexpr uint32_t kExperts = 3;
constexpr LayerId kFirst(0), kSecond(1);

/// Two layers of FP8 experts in blocks of 128 x 128, each with its tensors one behind the other in a given order.
class Experts {
 public:
  /// `order`: indices into gate, up, down and their scales. `odd`: layer 0, expert 0 has this order instead.
  explicit Experts(const std::vector<size_t>& order, const std::vector<size_t>& odd = {}) {
    std::vector<test::RawTensor> tensors;
    unsigned seed = 0;
    for (const LayerId layer : {kFirst, kSecond}) {
      for (uint32_t expert = 0; expert < kExperts; ++expert) {
        const bool is_odd = !odd.empty() && layer == kFirst && expert == 0;
        for (const size_t which : is_odd ? odd : order)
          tensors.push_back(tensor({.layer = layer, .expert = ExpertId(expert)}, which, ++seed));
      }
    }
    // Numbers at multiples of their size, as writers place them.
    const uint64_t begin = sizeof(uint64_t) + header_bytes(test::safetensors_file(tensors));
    folder_.write("model.safetensors", test::safetensors_file(tensors, round_up(begin, 64) - begin));
    repository_ = format::open_repository(folder_.path().string(), {}, format::posix_file_system()).value();
    checkpoint.emplace(format::Checkpoint::open(*repository_, 1, {}).value());
  }

  [[nodiscard]] ExpertShape shape() const {
    return {.hidden = kHidden, .expert_inner = kInner, .quantization = {.block = format::BlockSize{128, 128}}};
  }
  [[nodiscard]] std::map<LayerId, ExpertLayout> layouts() const {
    auto made = lay_out_experts(*checkpoint, {.shape = shape(), .experts = kExperts, .layers = {kFirst, kSecond}},
                                ExpertPresence::all);
    REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
    return *made;
  }

  std::optional<format::Checkpoint> checkpoint;

 private:
  static uint64_t header_bytes(const std::string& file) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, file.data(), sizeof(bytes));
    return bytes;
  }
  static test::RawTensor tensor(ExpertKey key, size_t which, unsigned seed) {
    const size_t matrix = which % 3;
    const std::string projection = std::vector<std::string>{"gate_proj", "up_proj", "down_proj"}[matrix];
    const uint64_t out = matrix == 2 ? kHidden : kInner, in = matrix == 2 ? kInner : kHidden;
    const std::string name = "model.layers." + std::to_string(key.layer.value) + ".mlp.experts." +
                             std::to_string(key.expert.value) + "." + projection + ".weight";
    if (which < 3) return {name, "F8_E4M3", {out, in}, test::pattern(out * in, seed)};
    return {name + "_scale_inv", "F32", {out / 128, in / 128}, test::pattern(out / 128 * in / 128 * 4, seed)};
  }
  test::TempFolder folder_;
  std::unique_ptr<format::Repository> repository_;
};

/// The copies of one expert, after which the device's planes are the host's.
size_t copies_of(const Experts& experts, ExpertKey key, uint64_t most_bytes = UINT64_MAX) {
  const ExpertLayout layout = experts.layouts().at(key.layer);
  const auto plan = plan_slot(*experts.checkpoint, key, experts.shape());
  REQUIRE(plan);
  const auto device = std::move(*kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
  const auto queue = device->make_queue();
  const auto slot = std::move(*device->allocate(plan->slot_bytes));
  const auto memory = std::move(*device->allocate(layout.expert_bytes));
  const std::string bytes = test::pattern(plan->slot_bytes, 7);
  std::memcpy(slot->host().data(), bytes.data(), bytes.size());
  const ExpertWeights from = weights_in(*plan, *slot), to = weights_at(layout, {memory.get(), 0});
  const auto pieces = pieces_of(layout, from, to, most_bytes);
  for (const ExpertPiece& piece : pieces) {
    CHECK(piece.host.size() <= most_bytes);
    queue->upload(piece.device, piece.host);
  }
  for (const auto& [source, target] :
       {std::pair(&from.gate, &to.gate), std::pair(&from.up, &to.up), std::pair(&from.down, &to.down)}) {
    CHECK(target->weight().planes[kernels::kCodes].offset_bytes % 128 == 0);
    for (size_t plane = 0; plane < kernels::kPlanes; ++plane) {
      const uint64_t size = kernels::plane_size(source->weight(), plane).bytes;
      if (size == 0) continue;
      CHECK(std::memcmp(slot->host().data() + source->weight().planes[plane].offset_bytes,
                        memory->host().data() + target->weight().planes[plane].offset_bytes, size) == 0);
    }
  }
  return pieces.size();
}

const std::vector<size_t> kByKind = {0, 1, 2, 3, 4, 5};    // as `reshard` stores them
const std::vector<size_t> kByMatrix = {0, 3, 1, 4, 2, 5};  // as a release does
const std::vector<size_t> kByName = {2, 5, 0, 3, 1, 4};

TEST_CASE("expert layout: an expert that is stored in one piece takes one copy, in whatever order") {
  for (const auto& order : {kByKind, kByMatrix, kByName}) {
    const Experts experts(order);
    for (const LayerId layer : {kFirst, kSecond})
      for (uint32_t expert = 0; expert < kExperts; ++expert)
        CHECK(copies_of(experts, {.layer = layer, .expert = ExpertId(expert)}) == 1);
    CHECK(copies_of(experts, {.layer = kFirst, .expert = ExpertId(0)}, 1 << 20) == 2);
    constexpr uint64_t kBytes = 3 * (uint64_t{kHidden} * kInner + 128);
    CHECK(experts.layouts().at(kFirst).expert_bytes == round_up(kBytes, 256));
  }
}

TEST_CASE("expert layout: one that is stored otherwise takes more copies, and layers still share slots") {
  const Experts experts(kByKind, kByName);
  CHECK(copies_of(experts, {.layer = kFirst, .expert = ExpertId(0)}) > 1);
  CHECK(copies_of(experts, {.layer = kFirst, .expert = ExpertId(1)}) == 1);
  CHECK(copies_of(experts, {.layer = kSecond, .expert = ExpertId(0)}) == 1);
  CHECK(device_slot_layouts(experts.layouts(), kExperts).size() == 1);
}

TEST_CASE("expert layout: how a layer's experts are stored is asked for a GPU alone, before anything is read") {
  struct Case {
    const char* gate;
    const char* up;
    const char* other_up;  // of expert 1
    const char* refusal;
  };
  for (const Case& each : {Case{"BF16", "BF16", "BF16", ""},
                           {"BF16", "F16", "F16", "expert 0: its up_proj is stored in another way than its gate_proj"},
                           {"BF16", "BF16", "F16", "expert 1: its up_proj is stored in another way than"}}) {
    std::vector<test::RawTensor> tensors;
    for (const std::string expert : {"0", "1"}) {
      for (const auto& [projection, dtype] :
           {std::pair("gate_proj", each.gate), std::pair("up_proj", expert == "0" ? each.up : each.other_up),
            std::pair("down_proj", each.gate)}) {
        tensors.push_back({"model.layers.0.mlp.experts." + expert + "." + projection + ".weight",
                           dtype,
                           {16, 16},
                           test::pattern(512, 1)});
      }
    }
    const test::TempFolder folder;
    folder.write("model.safetensors", test::safetensors_file(tensors));
    const auto repository = format::open_repository(folder.path().string(), {}, format::posix_file_system()).value();
    const auto checkpoint = format::Checkpoint::open(*repository, 1, {}).value();
    const DeviceExperts wanted{
        .shape = {.hidden = 16, .expert_inner = 16, .quantization = {}}, .experts = 2, .layers = {kFirst}};
    const auto layouts = lay_out_experts(checkpoint, wanted, ExpertPresence::all);
    const std::string said = layouts ? "" : layouts.error().message;
    CAPTURE(said);
    CHECK(layouts.has_value() == std::string(each.refusal).empty());
    CHECK(said.find(each.refusal) != std::string::npos);
    // The CPU computes all of them, and its trials ask no GPU's rule.
    const auto trial = find_trial_expert(checkpoint, wanted);
    REQUIRE(trial);
    CHECK(trial->layout == layout_of(trial->slot));
  }
}

}  // namespace
}  // namespace dspack::runtime::expert_layout_test
