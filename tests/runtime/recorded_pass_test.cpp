// A whole model with resident experts, on the CPU and on a device that runs nothing before it must, records passes and
// has memory of its own: logits and texts are those of a streamed run, bit for bit.
#include "runtime/model/recorded_pass.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "kernels/sampling.h"
#include "runtime/generate/session.h"
#include "runtime/model/mtp.h"
#include "runtime/weights/scratch.h"
#include "tests/runtime/support/family.h"
#include "tests/runtime/support/stored_tensors.h"
#include "tests/support/deferred_device.h"
#include "tests/support/numeric.h"
#include "tests/support/temp_folder.h"

namespace dspack::runtime::recorded_pass_test {
namespace {

using Counts = std::shared_ptr<const test::DeferredCounts>;

LoadOptions options_of(const std::optional<SpeculationOptions>& speculation = {}) {
  LoadOptions options;
  options.context = 160;
  options.threads = 2;
  options.io = IoMethod::buffered;
  options.prefetch = PrefetchMode::off;
  options.speculation = speculation;
  return options;
}

LoadOptions deferred(LoadOptions options, Counts& counts) {
  options.device.kind = DeviceKind::cuda;
  options.device.open_gpu = [&counts](size_t) -> Result<std::unique_ptr<kernels::Device>> {
    TRY_ASSIGN(auto inner, kernels::make_cpu_device({.threads = 2, .instruction_set = {}}));
    auto device = std::make_unique<test::DeferredDevice>(std::move(inner));
    counts = device->counts();
    return std::unique_ptr<kernels::Device>(std::move(device));
  };
  return options;
}

std::unique_ptr<LoadedModel> loaded(const std::filesystem::path& folder, const LoadOptions& options) {
  auto model = test::load_folder(folder, options);
  REQUIRE_MESSAGE(model, (model ? "" : model.error().message));
  return std::move(*model);
}

Sequence sequence_of(LoadedModel& model, Model::Drafting drafting = Model::Drafting::none) {
  auto sequence = model.model().make_sequence(drafting);
  REQUIRE(sequence);
  return std::move(*sequence);
}

/// Appends the tokens in one pass, which ends with the choice of the next ones as a session's does.
HiddenStates forward(LoadedModel& model, Sequence& sequence, std::span<const uint32_t> tokens,
                     const std::optional<TokenDraw>& draw = {}) {
  const Engine engine = model.engine();
  const auto rows = static_cast<uint32_t>(tokens.size());
  engine.model.experts().begin_pass({.phase = Phase::decode, .rows = rows, .draft_rows = rows - 1});
  const auto states = engine.model.forward({.sequence = sequence, .tokens = tokens}, engine.scratch, {},
                                           {.end = engine.picker.end_of_pass(rows, draw)});
  REQUIRE_MESSAGE(states, (states ? "" : states.error().message));
  return *states;
}

/// The same; its logits.
std::vector<float> pass(LoadedModel& model, Sequence& sequence, std::span<const uint32_t> tokens) {
  const HiddenStates states = forward(model, sequence, tokens);
  std::vector<float> logits(tokens.size() * model.model().config().vocab);
  model.engine().picker.logits(states.final, logits);
  return logits;
}

/// Chunks of a prompt, decoding by one and by several rows, and positions that are taken back.
std::vector<float> course(LoadedModel& model, std::span<const uint32_t> tokens) {
  std::vector<float> all;
  Sequence sequence = sequence_of(model);
  const auto append = [&](size_t count) {
    const std::vector<float> logits = pass(model, sequence, tokens.subspan(sequence.length(), count));
    all.insert(all.end(), logits.begin(), logits.end());
  };
  for (const size_t count : {11U, 11U, 5U, 1U, 1U, 1U, 3U, 3U, 1U, 3U})
    append(count);
  sequence.truncate(30);
  for (const size_t count : {1U, 3U, 5U, 1U})
    append(count);
  return all;
}

std::vector<uint32_t> some_tokens(const ModelConfig& config, size_t count) {
  std::vector<uint32_t> tokens(count);
  for (size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<uint32_t>((i * 131 + 17) % config.vocab);
  return tokens;
}

TEST_CASE("recorded pass: logits of a whole course are the streamed run's, bit for bit") {
  for (const Dtype kv_dtype : {Dtype::f32, Dtype::bf16, Dtype::f8_e4m3}) {
    CAPTURE(to_string(kv_dtype));
    LoadOptions options = options_of();
    options.memory.kv_dtype = kv_dtype;
    const auto streamed = loaded(test::tiny_folder(), options);
    const auto tokens = some_tokens(streamed->model().config(), 60);
    const std::vector<float> wanted = course(*streamed, tokens);

    const auto host = loaded(test::tiny_folder(), options);
    CHECK(test::first_difference(course(*host, tokens), wanted) == wanted.size());

    Counts counts;
    const auto device = loaded(test::tiny_folder(), deferred(options, counts));
    CHECK(test::first_difference(course(*device, tokens), wanted) == wanted.size());
    CHECK(counts->recordings == 3);  // of 1, 3 and 5 rows, when each came for the second time
    CHECK(counts->steps == 9);       // all passes but those of 11 rows, and the first of each of these
  }
}

TEST_CASE("recorded pass: of a token it uploads its row and the position, enqueues one step, and waits once") {
  Counts counts;
  const auto model = loaded(test::tiny_folder(), deferred(options_of(), counts));
  const ModelConfig& config = model->model().config();
  const auto tokens = some_tokens(config, 8);
  Sequence sequence = sequence_of(*model);
  for (size_t i = 0; i < 3; ++i)
    pass(*model, sequence, std::span(tokens).subspan(i, 1));
  const test::DeferredCounts before = *counts;
  const HiddenStates states = forward(*model, sequence, std::span(tokens).subspan(3, 1));
  CHECK(model->engine().picker.likeliest(rows_of(states.final, 0, 1)));
  CHECK(counts->synchronisations - before.synchronisations == 1);
  CHECK(counts->steps - before.steps == 1);
  CHECK(counts->recordings == before.recordings);
  CHECK(counts->operations - before.operations == 3);
  CHECK(counts->uploaded_bytes - before.uploaded_bytes == config.hidden * sizeof(float) + sizeof(uint32_t));
  CHECK(counts->downloaded_bytes - before.downloaded_bytes == sizeof(uint32_t));
}

TEST_CASE("recorded pass: every variant of the family on a device with memory of its own") {
  for (const std::string& name : test::family_variants()) {
    CAPTURE(name);
    const auto folder = test::family_folder() / name;
    LoadOptions options = options_of();
    options.context = {};  // what each allows
    const auto streamed = loaded(folder, options);
    const auto tokens = some_tokens(streamed->model().config(), 24);
    Counts counts;
    const auto device = loaded(folder, deferred(options, counts));
    Sequence on_host = sequence_of(*streamed);
    Sequence on_device = sequence_of(*device);
    for (const size_t count : {9U, 1U, 1U, 1U, 2U, 2U, 2U}) {
      const auto part = std::span(tokens).subspan(on_host.length(), count);
      const std::vector<float> wanted = pass(*streamed, on_host, part);
      CHECK(test::first_difference(pass(*device, on_device, part), wanted) == wanted.size());
    }
    CHECK(counts->steps == 4);
  }
}

/// Logits of the MTP module: of all positions, then of chains of drafts after the last one.
std::vector<float> foretold(LoadedModel& model, std::span<const uint32_t> tokens) {
  const auto& module = dynamic_cast<const MtpModule&>(*model.mtp());
  Sequence sequence = sequence_of(model, Model::Drafting::mtp);
  Scratch& scratch = model.engine().scratch;
  const size_t vocab = model.model().config().vocab;
  std::vector<float> all;
  const auto append = [&](const kernels::Rows& rows) {
    std::vector<float> logits(rows.rows * vocab);
    module.logits(rows, scratch, logits);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  for (const size_t count : {5U, 2U, 2U, 1U, 2U, 1U}) {
    const uint32_t at = sequence.length();
    REQUIRE(model.model().forward({.sequence = sequence, .tokens = tokens.subspan(at, count)}, scratch, {}));
    auto output = module.catch_up(sequence, scratch, tokens.subspan(at + 1, count), MtpHidden::post_norm, {},
                                  [&](uint32_t, const kernels::Rows& rows) { append(rows); });
    REQUIRE(output);
    for (const uint32_t draft : {3U, 4U}) {
      output = module.chain(sequence, scratch, *output, draft, MtpHidden::post_norm, {});
      REQUIRE(output);
      append(*output);
    }
    sequence.mtp()->truncate(sequence.length());
  }
  return all;
}

TEST_CASE("recorded pass: the MTP module's layer is recorded, too, and foretells the same") {
  const auto options = options_of(SpeculationOptions{.drafts = 1});
  const auto streamed = loaded(test::tiny_folder(), options);
  const auto tokens = some_tokens(streamed->model().config(), 20);
  const std::vector<float> wanted = foretold(*streamed, tokens);
  Counts counts;
  const auto device = loaded(test::tiny_folder(), deferred(options, counts));
  CHECK(test::first_difference(foretold(*device, tokens), wanted) == wanted.size());
  CHECK(counts->recordings == 4);          // the model's and the module's, of one row and of two
  CHECK(counts->steps == 1 + 2 + 13 + 2);  // all passes but the first of each and the one of five rows
}

struct Said {
  std::vector<uint32_t> tokens;
  uint64_t drafted = 0, accepted = 0, steps = 0;
  bool operator==(const Said&) const = default;
};

Said say(Session& session, const std::vector<uint32_t>& prompt, const SamplerOptions& sampling) {
  session.clear();
  auto sampler = Sampler::make(sampling);
  REQUIRE(sampler);
  const auto answer =
      session.generate(prompt, {.max_tokens = 24, .end_tokens = {1}}, *sampler, [](uint32_t) { return true; }, {});
  REQUIRE_MESSAGE(answer, (answer ? "" : answer.error().message));
  Said said{.tokens = answer->tokens};
  if (const Speculator* speculator = session.speculator()) {
    said.drafted = speculator->stats().drafted;
    said.accepted = speculator->stats().accepted;
    said.steps = speculator->stats().steps;
  }
  return said;
}

TEST_CASE("recorded pass: texts are the streamed run's, greedy and at random, with and without the MTP module") {
  const auto prompts = test::golden_prompts();
  const std::vector<SamplerOptions> samplings = {{},
                                                 {.repetition_penalty = 1.1},
                                                 {.temperature = 0.8, .seed = 7},
                                                 {.temperature = 3, .top_k = 40, .top_p = 0.9, .seed = 7},
                                                 {.temperature = 2, .min_p = 0.05, .seed = 8},
                                                 {.temperature = 1, .logit_bias = {{5, 1.0}}, .seed = 9}};
  for (const std::optional<uint32_t> drafts : {std::optional<uint32_t>(), std::optional(1U), std::optional(3U)}) {
    CAPTURE(drafts.value_or(0));
    const auto options = options_of(drafts ? std::optional(SpeculationOptions{.drafts = drafts}) : std::nullopt);
    Counts counts;
    const auto streamed = loaded(test::tiny_folder(), options);
    const auto host = loaded(test::tiny_folder(), options);
    const auto device = loaded(test::tiny_folder(), deferred(options, counts));
    Session of_streamed = test::session_of(*streamed);
    Session of_host = test::session_of(*host);
    Session of_device = test::session_of(*device);
    for (const SamplerOptions& sampling : samplings) {
      const Said wanted = say(of_streamed, prompts[0].tokens, sampling);
      CHECK(say(of_host, prompts[0].tokens, sampling) == wanted);
      CHECK(say(of_device, prompts[0].tokens, sampling) == wanted);
      CHECK(wanted.tokens.size() > 4);
      if (drafts) CHECK(wanted.accepted > 0);
    }
    CHECK(counts->steps > 10);
    CHECK(counts->recordings <= 2 * kMaxRecordedRows);
  }
}

TEST_CASE("recorded pass: recorded routes are the streamed run's; a pass whose routes are wanted is no step") {
  const auto prompt = test::golden_prompts()[0].tokens;
  const test::TempFolder folder;
  const auto routes = [&](const std::string& name, const LoadOptions& options) {
    LoadOptions recording = options;
    recording.route_trace = (folder.path() / name).string();
    const auto model = loaded(test::tiny_folder(), recording);
    Session session = test::session_of(*model);
    say(session, prompt, {});
    REQUIRE(model->flush_routes());
    return test::read_file(recording.route_trace);
  };
  for (const auto& options : {options_of(), options_of(SpeculationOptions{.drafts = 2})}) {
    Counts counts;
    const std::string wanted = routes("streamed", options);
    CHECK(wanted.size() > 1000);
    CHECK(routes("device", deferred(options, counts)) == wanted);
    CHECK(counts->steps == 0);
  }
}

TEST_CASE("recorded pass: a greedy token costs four bytes from the device") {
  Counts counts;
  const auto model = loaded(test::tiny_folder(), deferred(options_of(), counts));
  Session session = test::session_of(*model);
  const auto prompt = test::golden_prompts()[0].tokens;
  const Said said = say(session, prompt, {});
  const uint64_t before = counts->downloaded_bytes;
  CHECK(say(session, prompt, {}) == said);
  CHECK(counts->downloaded_bytes - before <= 4 * (said.tokens.size() + 1));
}

TEST_CASE("recorded pass: greedy drafts and what becomes of them cost four bytes each") {
  Counts counts;
  const auto model = loaded(test::tiny_folder(), deferred(options_of(SpeculationOptions{.drafts = 2}), counts));
  Session session = test::session_of(*model);
  const auto prompt = test::golden_prompts()[0].tokens;
  const uint64_t before = counts->downloaded_bytes;
  const Said said = say(session, prompt, {});
  CHECK(said.accepted > 0);
  CHECK(counts->downloaded_bytes - before <= 4 * (1 + said.drafted + said.drafted + said.steps));
}

TEST_CASE("recorded pass: a token drawn on the device costs four bytes from it, and one step") {
  Counts counts;
  const auto model = loaded(test::tiny_folder(), deferred(options_of(), counts));
  Session session = test::session_of(*model);
  const auto prompt = test::golden_prompts()[0].tokens;
  const SamplerOptions sampling{.temperature = 3, .top_p = 0.95, .seed = 3};  // or the text is the greedy one
  const Said said = say(session, prompt, sampling);
  CHECK(said.tokens != say(session, prompt, {}).tokens);
  const test::DeferredCounts before = *counts;
  CHECK(say(session, prompt, sampling) == said);
  CHECK(counts->downloaded_bytes - before.downloaded_bytes <= 4 * (said.tokens.size() + 1));
  CHECK(counts->steps - before.steps >= said.tokens.size() - 1);
  CHECK(counts->recordings == 2);  // one for greedy answers, one for those that are drawn
}

TEST_CASE("recorded pass: settings change from answer to answer, and the same step serves them") {
  Counts counts;
  const auto streamed = loaded(test::tiny_folder(), options_of());
  const auto device = loaded(test::tiny_folder(), deferred(options_of(), counts));
  Session of_streamed = test::session_of(*streamed);
  Session of_device = test::session_of(*device);
  const auto prompt = test::golden_prompts()[1].tokens;
  for (const SamplerOptions& sampling :
       {SamplerOptions{.temperature = 0.5, .seed = 1}, SamplerOptions{.temperature = 3, .top_k = 5, .seed = 2},
        SamplerOptions{}, SamplerOptions{.temperature = 3, .top_k = 50, .top_p = 0.5, .seed = 2}})
    CHECK(say(of_device, prompt, sampling) == say(of_streamed, prompt, sampling));
  CHECK(counts->recordings == 2);
}

TEST_CASE("recorded pass: the likeliest of a pass that has drawn is still to be had, and other draws are") {
  Counts counts;
  const auto streamed = loaded(test::tiny_folder(), options_of());
  const auto device = loaded(test::tiny_folder(), deferred(options_of(), counts));
  const std::vector<uint32_t> tokens = {7};
  const TokenDraw draw{.settings = {.temperature = 5}, .noise = {.seed = 1}};
  const TokenDraw other{.settings = {.temperature = 5}, .noise = {.seed = 2}};
  Sequence on_host = sequence_of(*streamed);
  const std::vector<float> logits = pass(*streamed, on_host, tokens);
  Sequence sequence = sequence_of(*device);
  TokenPicker& picker = device->engine().picker;
  for (int i = 0; i < 3; ++i) {
    CAPTURE(i);
    sequence.truncate(0);
    const HiddenStates states = forward(*device, sequence, tokens, draw);
    const auto drawn = [&](const TokenDraw& each) { return kernels::sample_row(logits, each.settings, each.noise); };
    CHECK(picker.drawn(states.final, draw) == drawn(draw));
    CHECK(picker.drawn(states.final, other) == drawn(other));
    CHECK(drawn(other) != drawn(draw));
    const auto highest = static_cast<uint32_t>(std::ranges::max_element(logits) - logits.begin());
    CHECK(picker.likeliest(states.final) == std::vector{highest});
    CHECK(picker.drawn(states.final, draw) == drawn(draw));
  }
}

TEST_CASE("recorded pass: an interruption ends an answer between two steps") {
  for (const auto& options : {options_of(), options_of(SpeculationOptions{.drafts = 1})}) {
    Counts counts;
    const auto model = loaded(test::tiny_folder(), deferred(options, counts));
    auto session = model->start_session();
    REQUIRE(session);
    auto sampler = Sampler::make({});
    REQUIRE(sampler);
    std::stop_source stop;
    uint32_t heard = 0;
    const auto answer = session->generate(
        test::golden_prompts()[0].tokens, {.max_tokens = 24, .end_tokens = {}}, *sampler,
        [&](uint32_t) {
          if (++heard == 9) stop.request_stop();
          return true;
        },
        stop.get_token());
    REQUIRE(answer);
    CHECK(answer->reason == StopReason::interrupted);
    CHECK(answer->tokens.size() == 9);
    CHECK(counts->steps > 0);
  }
}

TEST_CASE("recorded pass: a logit that is no number is told of, as on the CPU") {
  test::AlteredVariant variant("f32");
  test::RawTensor& head = variant.tensor("lm_head.weight");
  const size_t row_bytes = head.bytes.size() / head.shape[0];
  std::fill_n(head.bytes.begin() + static_cast<ptrdiff_t>(20 * row_bytes), row_bytes, '\xFF');
  const auto folder = variant.write();
  const auto refusal = [](LoadedModel& model, double temperature) {
    auto session = model.start_session();
    REQUIRE(session);
    auto sampler = Sampler::make({.temperature = temperature});
    REQUIRE(sampler);
    const auto answer = session->generate(std::vector<uint32_t>{5, 6}, {.max_tokens = 2, .end_tokens = {}}, *sampler,
                                          [](uint32_t) { return true; }, {});
    REQUIRE_FALSE(answer);
    return answer.error().message;
  };
  for (const double temperature : {0.0, 0.7}) {
    Counts counts;
    const std::string wanted = refusal(*loaded(folder, options_of()), temperature);
    CHECK(wanted.find("logit 20 is") != std::string::npos);
    CHECK(refusal(*loaded(folder, deferred(options_of(), counts)), temperature) == wanted);
  }
}

}  // namespace
}  // namespace dspack::runtime::recorded_pass_test
