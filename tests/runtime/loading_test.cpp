// What loading and passes tell whoever looks on.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/generate/session.h"
#include "runtime/generate/stats.h"
#include "tests/runtime/support/open_checkpoint.h"
#include "tests/runtime/support/stored_tensors.h"

namespace dspack::runtime::loading_test {
namespace {

class ToldProgress final : public format::Progress {
 public:
  using format::Progress::note;
  using format::Progress::started;
  void started(const format::Work& work) override {
    works.emplace_back(work.what);
    unit = work.item;
    total_bytes = work.total_bytes;
    total_items = work.total_items;
  }
  void advanced(uint64_t more) override { bytes += more; }
  void item_done() override { ++items; }
  void note(format::NoteKind, std::string_view) override {}
  void finished() override { is_finished = true; }

  std::vector<std::string> works;
  std::string unit;
  uint64_t total_bytes = 0, total_items = 0, bytes = 0, items = 0;
  bool is_finished = false;
};

Result<std::unique_ptr<LoadedModel>> load(const std::shared_ptr<ToldProgress>& progress) {
  return LoadedModel::load(
      test::open_checkpoint(test::tiny_folder()),
      {.context = 64, .threads = 1, .instruction_set = {}, .prefetch = PrefetchMode::off, .progress = progress}, {});
}

TEST_CASE("loading: layers and bytes are told as they come, and all of them in the end") {
  const auto progress = std::make_shared<ToldProgress>();
  const auto loaded = load(progress);
  REQUIRE(loaded);
  CHECK(progress->works == std::vector<std::string>{"loading"});
  CHECK(progress->unit == "layers");
  CHECK(progress->total_items == (*loaded)->model().layer_map().size());
  CHECK(progress->items == progress->total_items);
  CHECK(progress->total_bytes > 0);
  CHECK(progress->bytes == progress->total_bytes);
  CHECK(progress->is_finished);
}

TEST_CASE("passes: who looks on sees the layers that were begun, and the experts that were read") {
  auto loaded = load(nullptr);
  REQUIRE(loaded);
  CHECK((*loaded)->pass_state().layers_begun == 0);
  auto session = (*loaded)->start_session();
  REQUIRE(session);
  auto sampler = Sampler::make({});
  REQUIRE(sampler);
  const test::GoldenPrompt prompt = test::golden_prompts().front();
  REQUIRE(session->generate(prompt.tokens, {.max_tokens = 4, .end_tokens = {}}, *sampler, [](uint32_t) { return true; },
                            {}));
  const ExpertStoreStats stats = (*loaded)->experts().stats();
  const uint64_t passes = stats.phases[0].passes + stats.phases[1].passes;
  CHECK(passes == 4);
  CHECK((*loaded)->pass_state().layers_begun == passes * (*loaded)->model().layer_map().size());
  CHECK_FALSE((*loaded)->pass_state().reads_layer);
  const ExpertReading reading = (*loaded)->experts().store()->reading();
  CHECK(reading.experts == stats.misses());
  CHECK(reading.bytes[0] == stats.bytes_read());
  CHECK(reading.bytes[1] == 0);
  CHECK(reading.awaited == 0);
  CHECK(reading.awaited_from == Medium::disk);
}

}  // namespace
}  // namespace dspack::runtime::loading_test
