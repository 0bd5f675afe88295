// Several sequences in one pass: each row has the bits that it has alone, on the CPU, on a device that records passes
// and on the emulated GPU, with streamed experts and with the MTP module.
#include "runtime/model/sequence.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "runtime/generate/session.h"
#include "runtime/model/mtp.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/deferred_device.h"
#include "tests/support/numeric.h"

namespace dspack::runtime::sequence_test {
namespace {

using Tokens = std::vector<uint32_t>;

/// Few slots for experts, so that they are read again and again; a module to draft with.
LoadOptions streamed() {
  LoadOptions options;
  options.context = 64;
  options.threads = 2;
  options.io = IoMethod::buffered;
  options.memory.experts = Amount{.number = 24, .percent = {}};
  options.speculation = SpeculationOptions{.drafts = 2};
  return options;
}

LoadOptions resident_on_device(bool records) {
  LoadOptions options = streamed();
  if (!records) options.device.vram_experts = Amount{.number = 6, .percent = {}};
  options.device.kind = DeviceKind::cuda;
  options.device.open_gpu = [](size_t) -> Result<std::unique_ptr<kernels::Device>> {
    TRY_ASSIGN(auto inner, kernels::make_cpu_device({.threads = 2, .instruction_set = {}}));
    return std::unique_ptr<kernels::Device>(std::make_unique<test::DeferredDevice>(std::move(inner)));
  };
  return options;
}

std::unique_ptr<LoadedModel> loaded(const LoadOptions& options) {
  auto model = test::load_folder(test::tiny_folder(), options);
  REQUIRE_MESSAGE(model, (model ? "" : model.error().message));
  return std::move(*model);
}

Tokens some_tokens(const LoadedModel& model, size_t count, uint32_t seed) {
  Tokens tokens(count);
  for (size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<uint32_t>((i * 131 + seed) % model.model().config().vocab);
  return tokens;
}

/// A conversation with all tokens that will be passed, and the logits after those that have been.
struct Course {
  Sequence sequence;
  Tokens tokens;
  std::vector<float> logits = {};

  [[nodiscard]] std::span<const uint32_t> next(size_t count) const {
    return std::span(tokens).subspan(sequence.length(), count);
  }
};

Course course_of(LoadedModel& model, size_t length, uint32_t seed) {
  auto sequence = model.model().make_sequence(Model::Drafting::mtp);
  REQUIRE(sequence);
  return {.sequence = std::move(*sequence), .tokens = some_tokens(model, length, seed)};
}

/// Appends the next `counts[i]` tokens to course i, all in one pass.
void pass(LoadedModel& model, std::span<Course*> courses, const std::vector<size_t>& counts) {
  const Engine engine = model.engine();
  std::vector<SequenceTokens> batch;
  uint32_t rows = 0;
  for (size_t i = 0; i < courses.size(); ++i) {
    if (counts[i] == 0) continue;
    batch.push_back({.sequence = courses[i]->sequence, .tokens = courses[i]->next(counts[i])});
    rows += static_cast<uint32_t>(counts[i]);
  }
  engine.model.experts().begin_pass({.phase = rows > batch.size() ? Phase::prefill : Phase::decode, .rows = rows});
  const auto states = engine.model.forward(batch, engine.scratch, {}, {.end = engine.picker.end_of_pass(rows)});
  REQUIRE_MESSAGE(states, (states ? "" : states.error().message));
  const size_t vocab = engine.model.config().vocab;
  std::vector<float> logits(rows * vocab);
  engine.picker.logits(states->final, logits);
  auto at = logits.begin();
  for (size_t i = 0; i < courses.size(); ++i) {
    const auto end = at + static_cast<std::ptrdiff_t>(counts[i] * vocab);
    courses[i]->logits.insert(courses[i]->logits.end(), at, end);
    at = end;
  }
}

/// The module reads all that is pending and drafts two tokens; its logits are appended.
void draft(LoadedModel& model, Course& course) {
  const Engine engine = model.engine();
  const auto& module = dynamic_cast<const MtpModule&>(*model.mtp());
  MtpState& state = *course.sequence.mtp();
  if (state.pending() == 0 || course.sequence.length() == course.tokens.size()) return;
  const auto append = [&](const kernels::Rows& rows) {
    std::vector<float> logits(size_t{rows.rows} * engine.model.config().vocab);
    module.logits(rows, engine.scratch, logits);
    course.logits.insert(course.logits.end(), logits.begin(), logits.end());
  };
  const auto next = std::span<const uint32_t>(course.tokens).subspan(state.length() + 1, state.pending());
  auto last = module.catch_up(course.sequence, engine.scratch, next, MtpHidden::post_norm, {});
  REQUIRE_MESSAGE(last, (last ? "" : last.error().message));
  append(*last);
  last = module.chain(course.sequence, engine.scratch, *last, 7, MtpHidden::post_norm, {});
  REQUIRE_MESSAGE(last, (last ? "" : last.error().message));
  append(*last);
  state.truncate(course.sequence.length());
}

enum class Drafts { none, both };

// Prompts of other lengths, single steps, drafts to verify, a course that pauses, and one that goes back.
using Steps = std::vector<std::vector<size_t>>;
const Steps kSteps = {{9, 5}, {1, 1}, {1, 1}, {1, 1}, {0, 1}, {3, 1}, {1, 3}, {2, 0}, {1, 1}, {6, 7}, {1, 1}, {1, 1}};

// The emulated GPU is slow.
const Steps kFewSteps = {{4, 2}, {1, 1}, {1, 1}, {0, 1}, {2, 1}, {1, 1}};

void go_back(Course& course, size_t step) {
  if (step == 6) course.sequence.truncate(course.sequence.length() - 2);
}

/// The logits of each of two courses that share every pass, and of each alone, on models that `make` loads.
void check_shared(const LoadOptions& options, Drafts drafts, const Steps& steps = kSteps) {
  const auto together = loaded(options);
  const auto alone = loaded(options);
  Course first = course_of(*together, 40, 17);
  Course second = course_of(*together, 40, 400);
  Course first_alone = course_of(*alone, 40, 17);
  Course second_alone = course_of(*alone, 40, 400);
  Course* const both[] = {&first, &second};
  Course* const one[] = {&first_alone};
  Course* const other[] = {&second_alone};
  for (size_t step = 0; step < steps.size(); ++step) {
    CAPTURE(step);
    const std::vector<size_t>& counts = steps[step];
    std::vector<Course*> shared(std::begin(both), std::end(both));
    pass(*together, shared, counts);
    std::vector<Course*> singles(std::begin(one), std::end(one));
    if (counts[0] > 0) pass(*alone, singles, {counts[0]});
    singles.assign(std::begin(other), std::end(other));
    if (counts[1] > 0) pass(*alone, singles, {counts[1]});
    for (Course* course : {&first, &second, &first_alone, &second_alone}) {
      if (drafts == Drafts::both) draft(course == &first || course == &second ? *together : *alone, *course);
      go_back(*course, step);
    }
    CHECK(test::first_difference(first.logits, first_alone.logits) == first_alone.logits.size());
    CHECK(test::first_difference(second.logits, second_alone.logits) == second_alone.logits.size());
  }
  CHECK(first.logits != second.logits);
}

TEST_CASE("sequences: two in one pass have the bits of each alone, on the CPU with streamed experts") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3}) {
    CAPTURE(to_string(dtype));
    LoadOptions options = streamed();
    options.memory.kv_dtype = dtype;
    check_shared(options, Drafts::none);
    check_shared(options, Drafts::both);
  }
}

TEST_CASE("sequences: the same on a device that records the passes of one sequence and keeps some experts or all") {
  for (const bool records : {true, false}) {
    CAPTURE(records);
    for (const Drafts drafts : {Drafts::none, Drafts::both})
      check_shared(resident_on_device(records), drafts);
  }
}

#ifdef DSPACK_EMULATED_CUDA
TEST_CASE("sequences: the same on the emulated GPU, with streamed experts and with resident ones") {
  LoadOptions options = streamed();
  options.device.kind = DeviceKind::cuda;
  options.device.cuda_library = DSPACK_EMULATED_CUDA;
  options.device.cublaslt = "off";
  // All are computed by the GPU: the CPU would add up the same products in another order.
  options.device.miss = {.mode = MissMode::move};
  options.device.vram_experts = Amount{.number = 6, .percent = {}};
  check_shared(options, Drafts::none, kFewSteps);
  check_shared(options, Drafts::both, kFewSteps);
  options.device.vram_experts.reset();
  options.memory.experts.reset();
  check_shared(options, Drafts::both, kFewSteps);
}
#endif

TEST_CASE("sequences: rows of three share a pass in waves that cut them, and each has its own length") {
  LoadOptions options = streamed();
  const auto together = loaded(options);
  std::vector<Course> courses;
  for (const uint32_t seed : {3U, 90U, 700U})
    courses.push_back(course_of(*together, 30, seed));
  std::vector<Course*> all;
  for (Course& course : courses)
    all.push_back(&course);
  pass(*together, all, {13, 1, 8});
  pass(*together, all, {1, 9, 1});
  CHECK(courses[0].sequence.length() == 14);
  CHECK(courses[1].sequence.length() == 10);
  CHECK(courses[2].sequence.length() == 9);
  for (Course& course : courses) {
    CHECK(std::ranges::equal(course.sequence.tokens(), std::span(course.tokens).first(course.sequence.length())));
    Session session = test::session_of(*together);
    std::vector<float> wanted;
    REQUIRE(session.logits(std::span(course.tokens).first(course.sequence.length()), 0,
                           [&](std::span<const float> rows) { wanted.insert(wanted.end(), rows.begin(), rows.end()); },
                           {}));
    CHECK(test::first_difference(course.logits, wanted) == wanted.size());
  }
}

TEST_CASE("sequences: sessions over one model take turns, and each says what it says alone") {
  const auto prompts = test::golden_prompts();
  const auto say = [](Session& session, const Tokens& prompt) {
    auto sampler = Sampler::make({});
    REQUIRE(sampler);
    const auto answer =
        session.generate(prompt, {.max_tokens = 4, .end_tokens = {}}, *sampler, [](uint32_t) { return true; }, {});
    REQUIRE(answer);
    Tokens spoken = prompt;
    spoken.insert(spoken.end(), answer->tokens.begin(), answer->tokens.end());
    return spoken;
  };
  for (const LoadOptions& options : {streamed(), resident_on_device(true)}) {
    const auto model = loaded(options);
    Session first = test::session_of(*model);
    Session second = test::session_of(*model);
    Tokens one = prompts[0].tokens;
    Tokens other = prompts[1].tokens;
    for (int turn = 0; turn < 3; ++turn) {
      one = say(first, one);
      other = say(second, other);
    }
    Session alone = test::session_of(*model);
    Tokens wanted = prompts[0].tokens;
    for (int turn = 0; turn < 3; ++turn)
      wanted = say(alone, wanted);
    CHECK(one == wanted);
    // What the other said in between was not computed again, and neither was this.
    CHECK(first.times().prefill_tokens == alone.times().prefill_tokens);
    CHECK(first.speculator()->stats().accepted == alone.speculator()->stats().accepted);
  }
}

TEST_CASE("sequences: a repeated one holds the rows and tokens of its first positions again and again") {
  const auto model = loaded(streamed());
  auto made = model->model().make_sequence();
  REQUIRE(made);
  Course course{.sequence = std::move(*made), .tokens = some_tokens(*model, 40, 5)};
  Course* only[] = {&course};
  constexpr uint32_t kComputed = 7;
  pass(*model, only, {kComputed});
  course.sequence.repeat(20);
  REQUIRE(course.sequence.length() == kComputed + 20);
  const KvCache& cache = course.sequence.cache();
  const std::byte* bytes = kernels::host_bytes(cache.buffer()).data();
  const auto layers = static_cast<uint32_t>(model->model().layer_map().size());
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const CacheRows rows = cache.rows(layer, "latent");
    const auto row = [&](uint32_t position) {
      const std::byte* from = bytes + rows.at(position).offset_bytes;
      return std::vector<std::byte>(from, from + rows.row_bytes);
    };
    CHECK(row(0) != row(1));
    for (uint32_t position = kComputed; position < kComputed + 20; ++position)
      CHECK(row(position) == row(position % kComputed));
  }
  for (uint32_t position = 0; position < kComputed + 20; ++position)
    CHECK(course.sequence.tokens()[position] == course.tokens[position % kComputed]);
}

}  // namespace
}  // namespace dspack::runtime::sequence_test
