// Layers that memory has no room for: read in every pass, and the same numbers come out.
#include "runtime/model/layer_store.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "runtime/generate/session.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/numeric.h"

namespace dspack::runtime::layer_store_test {
namespace {

std::set<LayerId> layers(std::initializer_list<uint32_t> ids) {
  std::set<LayerId> set;
  for (const uint32_t id : ids)
    set.insert(LayerId(id));
  return set;
}

std::vector<float> last_logits(test::RecordingModel& rig, const std::vector<uint32_t>& tokens) {
  std::vector<float> logits;
  Sequence sequence = rig.sequence();
  for (const uint32_t token : tokens) {  // a pass for each
    const auto hidden = rig.model().forward({.sequence = sequence, .tokens = {&token, 1}}, rig.scratch(), {});
    REQUIRE_MESSAGE(hidden, (hidden ? "" : hidden.error().message));
    std::vector<float> row(rig.model().config().vocab);
    rig.picker().logits(hidden->final, row);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

TEST_CASE("layer store: whatever streams, the bits are the same") {
  const std::vector<uint32_t> tokens = test::golden_prompts().front().logits_tokens;
  const std::vector<LayerId> repeated = {LayerId(0), LayerId(1), LayerId(2), LayerId(1), LayerId(4), LayerId(4)};
  for (const std::vector<LayerId>& map : {std::vector<LayerId>{}, repeated}) {
    test::RecordingModel whole(test::tiny_folder(), {.layer_map = map});
    const std::vector<float> wanted = last_logits(whole, tokens);
    const uint64_t once = whole.access().bytes_read(WeightPurpose::always_needed);
    for (const LayerStreaming& streaming : {LayerStreaming{.layers = layers({4}), .buffers = 1},
                                            LayerStreaming{.layers = layers({1, 2, 4}), .buffers = 2},
                                            LayerStreaming{.layers = layers({0, 1, 2, 3, 4}), .buffers = 2},
                                            LayerStreaming{.layers = layers({0, 1, 2, 3, 4}), .buffers = 1},
                                            LayerStreaming{.layers = layers({0, 1, 2, 3, 4}), .buffers = 3}}) {
      CAPTURE(streaming.layers.size());
      CAPTURE(streaming.buffers);
      test::RecordingModel rig(test::tiny_folder(), {.layer_map = map, .streaming = streaming});
      CHECK(test::first_difference(last_logits(rig, tokens), wanted) == wanted.size());
      if (streaming.layers.size() > streaming.buffers) {
        // A buffer is as large as the largest layer: three of them are no less than some maps have layers.
        if (streaming.buffers < 3) CHECK(rig.model().weight_bytes() < whole.model().weight_bytes());
        CHECK(rig.access().bytes_read(WeightPurpose::always_needed) > once * 2);
      }
    }
  }
}

TEST_CASE("layer store: layers stream to a device whose memory the host cannot address") {
  const std::vector<uint32_t> tokens = {5, 6, 7, 8};
  test::RecordingModel whole(test::tiny_folder(), {});
  const std::vector<float> wanted = last_logits(whole, tokens);
  const uint64_t once = whole.access().bytes_read(WeightPurpose::always_needed);
  for (const auto& kept : {layers({}), layers({2}), layers({1, 2, 4})}) {
    for (const uint32_t buffers : {1U, 2U}) {
      CAPTURE(kept.size());
      CAPTURE(buffers);
      test::RecordingModel rig(
          test::tiny_folder(),
          {.streaming = {.layers = layers({1, 2, 4}), .buffers = buffers, .kept = kept}, .is_deferred = true});
      CHECK(test::first_difference(last_logits(rig, tokens), wanted) == wanted.size());
      // What the host's memory keeps is read once, whatever comes of it.
      const uint64_t read = rig.access().bytes_read(WeightPurpose::always_needed);
      CHECK((kept.size() == 3 ? read == once : read > once));
    }
  }
}

constexpr uint64_t kLessThanALayer = 10'000;  // bytes, and more than any other upload of a pass has

TEST_CASE("layer store: with two buffers the next layer is on its way to a device when one is handed out") {
  const auto copies_of_two_tokens = [](uint32_t buffers) {
    const auto all = layers({1, 2, 3, 4});
    test::RecordingModel rig(test::tiny_folder(),
                             {.streaming = {.layers = all, .buffers = buffers, .kept = all}, .is_deferred = true});
    const auto before = static_cast<std::ptrdiff_t>(rig.counts().uploads.size());
    (void)last_logits(rig, {5, 6});
    const auto& uploads = rig.counts().uploads;
    return std::count_if(uploads.begin() + before, uploads.end(),
                         [](const auto& upload) { return upload.bytes > kLessThanALayer; });
  };
  CHECK(copies_of_two_tokens(1) == 2 * 4);
  CHECK(copies_of_two_tokens(2) == 2 * 4 + 1);  // and the first of the next token
}

/// Ends the run when the third layer has been computed.
class StoppingTrace final : public Trace {
 public:
  explicit StoppingTrace(std::stop_source& stop) : stop_(stop) {}
  [[nodiscard]] uint32_t tokens() const override { return 1; }
  void input(std::string_view /*module*/, const kernels::Rows& /*rows*/, uint32_t /*total_rows*/) override {}
  void output(std::string_view module, const kernels::Rows& /*rows*/, uint32_t /*total_rows*/) override {
    if (module == "model.layers.2") stop_.request_stop();
  }
  void routing(std::string_view /*module*/, const Routing& /*routing*/) override {}
  [[nodiscard]] Result<void> status() const override { return {}; }

 private:
  std::stop_source& stop_;
};

TEST_CASE("layer store: a pass that was given up does no harm") {
  const std::vector<uint32_t> tokens = {5, 6, 7};
  test::RecordingModel whole(test::tiny_folder(), {});
  const std::vector<float> wanted = last_logits(whole, tokens);
  for (const uint32_t buffers : {1U, 2U}) {
    test::RecordingModel rig(test::tiny_folder(),
                             {.streaming = {.layers = layers({0, 1, 2, 3, 4}), .buffers = buffers}});
    std::stop_source stopped;
    StoppingTrace trace(stopped);
    Sequence sequence = rig.sequence();
    const auto given_up = rig.model().forward({.sequence = sequence, .tokens = std::span(tokens).first(1)},
                                              rig.scratch(), stopped.get_token(), {.trace = &trace});
    REQUIRE_FALSE(given_up);
    CHECK(given_up.error().kind == ErrorKind::cancelled);
    CHECK(sequence.length() == 0);
    CHECK(test::first_difference(last_logits(rig, tokens), wanted) == wanted.size());
  }
}

}  // namespace
}  // namespace dspack::runtime::layer_store_test
