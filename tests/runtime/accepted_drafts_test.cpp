// Drafts whose fates are known: a module for drafts runs, but its tokens are replaced, the first ones by the answer's
// own, the others by wrong ones. (The drafts of the tests' random weights are hardly ever accepted.)
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/runtime/support/window_rig.h"

namespace dspack::runtime::accepted_drafts_test {
namespace {

using Tokens = std::vector<uint32_t>;

/// Says what `inner` would say, but for its tokens.
class Steered final : public DraftModule {
 public:
  /// `text`: prompt and answer, whose tokens the drafts are: none, one, .., all, none, and so on.
  Steered(const LoadContext& context, const Model& model, const DraftModule& inner, Tokens text)
      : DraftModule(context, model), inner_(inner), text_(std::move(text)) {}

  [[nodiscard]] Result<kernels::Rows> catch_up(Sequence& sequence, Scratch& scratch, std::span<const uint32_t> next,
                                               MtpHidden hidden, const std::stop_token& stop) const override {
    return inner_.catch_up(sequence, scratch, next, hidden, stop);
  }
  [[nodiscard]] Result<std::vector<uint32_t>> draft(const Request& request) const override {
    auto drafts = inner_.draft(request);
    if (!drafts) return drafts.error();
    const uint32_t length = request.sequence.length();
    const uint32_t right = calls_++ % (request.count + 1);
    for (uint32_t i = 0; i < drafts->size(); ++i) {
      const size_t at = length + 1 + i;
      const uint32_t token = at < text_.size() ? text_[at] : 0;
      (*drafts)[i] = i < right ? token : (token + 1) % model_.config().vocab;
    }
    accepted_ += std::min<uint64_t>(right, drafts->size());
    return drafts;
  }
  [[nodiscard]] uint32_t drafts_at_once() const override { return inner_.drafts_at_once(); }
  [[nodiscard]] MtpHidden usual_hidden() const override { return inner_.usual_hidden(); }
  [[nodiscard]] uint64_t scratch_bytes() const override { return inner_.scratch_bytes(); }
  /// Drafts that must have been accepted.
  [[nodiscard]] uint64_t accepted() const { return accepted_; }

 private:
  Result<void> load_all(const LoadContext& /*context*/, const std::stop_token& /*stop*/) override { return {}; }

  const DraftModule& inner_;
  Tokens text_;
  mutable uint32_t calls_ = 0;
  mutable uint64_t accepted_ = 0;
};

/// The module reads all that is pending; the sequence holds a beginning of `text`.
kernels::Rows catch_up(test::WindowRig& rig, Sequence& sequence, const Tokens& text) {
  MtpState& state = *sequence.mtp();
  const auto next = std::span<const uint32_t>(text).subspan(state.length() + 1, state.pending());
  const auto begin = rig.drafter().catch_up(sequence, rig.scratch(), next, rig.drafter().usual_hidden(), {});
  REQUIRE_MESSAGE(begin, (begin ? "" : begin.error().message));
  return *begin;
}

/// Logits of three more drafts, the same ones whatever the logits are.
std::vector<float> next_drafts(test::WindowRig& rig, Sequence& sequence, const Tokens& text) {
  const kernels::Rows begin = catch_up(rig, sequence, text);
  std::vector<float> logits;
  const DraftModule::Choose choose = [&](const kernels::Rows& scores) -> Result<uint32_t> {
    std::vector<float> row(rig.vocab());
    rig.queue().download(std::as_writable_bytes(std::span(row)), scores.data);
    rig.queue().synchronize();
    logits.insert(logits.end(), row.begin(), row.end());
    return 7U;
  };
  const auto drafts = rig.drafter().draft({.sequence = sequence,
                                           .scratch = rig.scratch(),
                                           .begin = begin,
                                           .last = text.at(sequence.length()),
                                           .count = 3,
                                           .hidden = rig.drafter().usual_hidden(),
                                           .choose = choose,
                                           .stop = {}});
  REQUIRE_MESSAGE(drafts, (drafts ? "" : drafts.error().message));
  return logits;
}

TEST_CASE("accepted drafts: the text is the model's, and the module goes on as if it had read the text") {
  for (const std::string name : {"v4", "v4-pro", "v4-dspark"}) {
    CAPTURE(name);
    test::WindowRig rig(name);
    for (const uint32_t prompt : {1U, 5U, 120U}) {  // answers that cross the borders of blocks of 4 and of 128
      CAPTURE(prompt);
      auto sampler = Sampler::make({.temperature = 0});
      REQUIRE(sampler);
      const auto answer_of = [&](Session& session) {
        const auto answer = session.generate(std::span(rig.tokens).first(prompt), {.max_tokens = 40, .end_tokens = {}},
                                             *sampler, [](uint32_t) { return true; }, {});
        REQUIRE_MESSAGE(answer, (answer ? "" : answer.error().message));
        return answer->tokens;
      };
      Session plain = rig.session();
      const Tokens wanted = answer_of(plain);
      Tokens text(rig.tokens.begin(), rig.tokens.begin() + prompt);
      text.insert(text.end(), wanted.begin(), wanted.end());
      for (const uint32_t drafts : {1U, 3U, 5U}) {
        CAPTURE(drafts);
        const Steered steered(rig.context(), rig.model(), rig.drafter(), text);
        Engine engine = rig.engine();
        engine.mtp = &steered;
        Session session(engine, rig.RecordingModel::sequence(Model::Drafting::mtp),
                        SpeculationOptions{.drafts = drafts});
        CHECK(answer_of(session) == wanted);
        CHECK(session.speculator()->stats().accepted == steered.accepted());
        CHECK(steered.accepted() > 0);
        CHECK(steered.accepted() < session.speculator()->stats().drafted);

        test::WindowRig fresh(name);
        const auto held = std::span(text).first(session.sequence().length());
        const size_t half = held.size() / 2;  // no more than is kept for a module that has not read
        fresh.pass(held.first(half));
        (void)catch_up(fresh, fresh.sequence, text);
        fresh.pass(held.subspan(half));
        const std::vector<float> same = next_drafts(fresh, fresh.sequence, text);
        const std::vector<float> logits = next_drafts(rig, session.sequence(), text);
        REQUIRE(logits.size() == size_t{3} * rig.vocab());
        CHECK(test::first_difference(logits, same) == same.size());
      }
    }
  }
}

}  // namespace
}  // namespace dspack::runtime::accepted_drafts_test
