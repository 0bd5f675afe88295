// Names and patterns of modules; and that a pass tells of just those modules, in the order in which they are listed.
#include "runtime/validation/module_names.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "runtime/generate/session.h"
#include "tests/runtime/support/recording_model.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::module_names_test {
namespace {

// Keeps names and row counts.
class NameTrace final : public Trace {
 public:
  explicit NameTrace(uint32_t tokens) : tokens_(tokens) {}
  [[nodiscard]] uint32_t tokens() const override { return tokens_; }
  void input(std::string_view module, const kernels::Rows& rows, uint32_t total) override {
    rows_["in " + std::string(module)] += rows.rows;
    totals_["in " + std::string(module)] = total;
  }
  void output(std::string_view module, const kernels::Rows& rows, uint32_t total) override {
    const std::string key = "out " + std::string(module);
    if (!rows_.contains(key)) finished.emplace_back(module);
    rows_[key] += rows.rows;
    totals_[key] = total;
  }
  void routing(std::string_view module, const Routing& routing) override {
    CHECK(is_router(module));
    routed += routing.rows;
  }
  [[nodiscard]] Result<void> status() const override { return {}; }
  [[nodiscard]] bool complete() const { return rows_ == totals_; }

  std::vector<std::string> finished;  // in the order of their first output
  uint64_t routed = 0;

 private:
  uint32_t tokens_;
  std::map<std::string, uint64_t> rows_;
  std::map<std::string, uint64_t> totals_;
};

TEST_CASE("modules: a pass tells of every module once, in waves or not") {
  const std::vector<uint32_t> tokens = test::golden_prompts().front().logits_tokens;
  for (const uint32_t wave : {128U, 3U}) {
    CAPTURE(wave);
    test::RecordingModel rig(test::tiny_folder(), {.wave_rows = wave, .wave_tokens = wave});
    NameTrace trace(static_cast<uint32_t>(tokens.size()));
    Session session = rig.session();
    REQUIRE(session.logits(
        tokens, 0, [](std::span<const float>) {}, {}, &trace));
    CHECK(trace.complete());
    CHECK(trace.routed == 4 * tokens.size());
    const std::set<std::string> told(trace.finished.begin(), trace.finished.end());
    std::vector<std::string> known = module_names(rig.model().config(), rig.model().layer_map());
    std::erase_if(known, [&](const std::string& name) { return is_routed(name) && !told.contains(name); });
    if (wave > tokens.size()) CHECK(trace.finished == known);
    CHECK(told == std::set<std::string>(known.begin(), known.end()));
    const size_t before = trace.finished.size();
    REQUIRE(session.logits(tokens, 0, [](std::span<const float>) {}, {}));
    CHECK(trace.finished.size() == before);
  }
}

TEST_CASE("modules: repeated layers are named by their place in the pass, as if they had been copied") {
  const std::vector<LayerId> map = {LayerId(0), LayerId(1), LayerId(2), LayerId(1), LayerId(2), LayerId(0)};
  const std::vector<uint32_t> tokens = {0, 5, 17};
  test::RecordingModel rig(test::tiny_folder(), {.layer_map = map});
  NameTrace trace(static_cast<uint32_t>(tokens.size()));
  Session session = rig.session();
  REQUIRE(session.logits(
      tokens, 0, [](std::span<const float>) {}, {}, &trace));
  CHECK(trace.complete());
  std::vector<std::string> known = module_names(rig.model().config(), map);
  std::erase_if(known, [&](const std::string& name) {
    return is_routed(name) && std::ranges::find(trace.finished, name) == trace.finished.end();
  });
  CHECK(trace.finished == known);
  CHECK(std::ranges::find(known, "model.layers.5.mlp.down_proj") != known.end());  // the dense layer again
}

TEST_CASE("modules: patterns") {
  const std::string name = "model.layers.3.self_attn.o_proj";
  for (const char* fitting : {"*", "model.layers.3.self_attn.o_proj", "*.o_proj", "model.*", "*self_attn*", "*.?_proj",
                              "model.layers.?.*", "**o_proj**", "m*l*y*3*j"}) {
    CAPTURE(fitting);
    CHECK(matches_pattern(fitting, name));
  }
  for (const char* other : {"", "model", "o_proj", "*.q_proj", "model.layers.?", "*x*", "?", "model.layers.33.*"}) {
    CAPTURE(other);
    CHECK_FALSE(matches_pattern(other, name));
  }
  CHECK(matches_pattern("", ""));
  const std::string long_name(20000, 'a');
  CHECK_FALSE(matches_pattern("*a*a*a*a*a*a*a*b", long_name));  // would never end if it tried every split
}

TEST_CASE("modules: routed experts and routers are known by name") {
  CHECK(is_routed("model.layers.3.mlp.experts.17"));
  CHECK(is_routed("model.layers.3.mlp.experts.17.up_proj"));
  CHECK_FALSE(is_routed("model.layers.3.mlp.experts"));
  CHECK_FALSE(is_routed("model.layers.3.mlp.experts.act_fn"));
  CHECK_FALSE(is_routed("model.layers.3.mlp.shared_experts.up_proj"));
  CHECK(is_router("model.layers.3.mlp.gate"));
  CHECK_FALSE(is_router("model.layers.3.mlp.gate_proj"));
  CHECK(output_tensor("model.layers.3.self_attn") == "model.layers.3.self_attn.output.0");
  CHECK(enclosing_module("model.layers.3.self_attn.o_proj") == "model.layers.3.self_attn");
  CHECK(enclosing_module("model.layers.3") == "model");
  CHECK(enclosing_module("lm_head").empty());
  CHECK(output_tensor("lm_head") == "lm_head.output");
}

}  // namespace
}  // namespace dspack::runtime::module_names_test
