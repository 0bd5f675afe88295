#include "runtime/generate/token_picker.h"

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/cpu_device.h"
#include "kernels/sample_weights.h"

namespace dspack::runtime {

namespace {

/// Offsets in the device's memory.
struct PickerLayout {
  ScratchPlan plan;
  uint64_t choices = plan.add(kMaxRecordedRows);
  uint64_t draw = plan.add(sizeof(TokenDraw) / sizeof(float));
};

}  // namespace

uint64_t TokenPicker::device_bytes() {
  return PickerLayout().plan.size_bytes();
}

Result<std::unique_ptr<TokenPicker>> TokenPicker::make(const Model& model, Scratch& scratch) {
  std::unique_ptr<TokenPicker> picker(new TokenPicker(model, scratch));
  if (model.device().is_host()) return picker;
  const PickerLayout layout;
  TRY_ASSIGN(picker->memory_, model.device().allocate(device_bytes()));
  TRY_ASSIGN(picker->chosen_, model.device().allocate_host(kMaxRecordedRows * sizeof(uint32_t)));
  picker->choices_ = {.buffer = picker->memory_.get(), .offset_bytes = layout.choices};
  picker->draw_place_ = {.buffer = picker->memory_.get(), .offset_bytes = layout.draw};
  return picker;
}

// How `sampler` draws the token after `context`, if that depends on no more than the context's length.
std::optional<TokenDraw> TokenPicker::draw_of(const Sampler& sampler, std::span<const uint32_t> context) {
  const auto settings = sampler.drawn_as_they_stand();
  if (!settings) return std::nullopt;
  return TokenDraw{.settings = *settings, .noise = sampler.noise_after(context.size())};
}

bool TokenPicker::can_draw() const {
  return model_.config().vocab <= kernels::kMaxSampled;
}

PassEnd* TokenPicker::end_of_pass(uint32_t rows, const std::optional<TokenDraw>& draw) {
  if (memory_ == nullptr || rows > kMaxRecordedRows) return nullptr;
  ending_ = {.choice = Choice::highest, .rows = rows, .draw = std::nullopt};
  if (draw && rows == 1 && can_draw()) ending_ = {.choice = Choice::drawn, .rows = rows, .draw = draw};
  return this;
}

void TokenPicker::prepare() {
  draw_.reset();
  if (ending_.draw) upload(*ending_.draw);
  scored_rows_ = ending_.rows;
  scored_generation_ = scratch_.generation();
}

void TokenPicker::enqueue(const kernels::Rows& final) {
  score(final, ending_.choice);
}

// At most kMaxRecordedRows rows.
void TokenPicker::score(const kernels::Rows& final, Choice choice) {
  model_.score(final, model_.head(), scratch_);
  const kernels::Rows logits = model_.score_rows(scratch_, final.rows);
  if (choice == Choice::highest) return queue_.argmax(logits, choices_);
  queue_.sample({.logits = logits,
                 .settings = draw_place_.at(offsetof(TokenDraw, settings)),
                 .keys = draw_place_.at(offsetof(TokenDraw, noise)),
                 .ids = choices_});
}

// Borrows draw_ until the queue is synchronised.
void TokenPicker::upload(const TokenDraw& draw) {
  draw_ = draw;
  queue_.upload(draw_place_, std::as_bytes(std::span(&*draw_, 1)));
}

std::span<const uint32_t> TokenPicker::chosen() const {
  return {reinterpret_cast<const uint32_t*>(kernels::host_bytes(*chosen_).data()), kMaxRecordedRows};
}

void TokenPicker::download_choices(uint32_t rows) {
  queue_.download(kernels::host_bytes(*chosen_).first(rows * sizeof(uint32_t)), choices_);
}

// Downloaded with the end of the pass, so a token needs no further synchronisation.
void TokenPicker::collect() {
  download_choices(ending_.rows);
}

std::optional<uint32_t> TokenPicker::scored_at(const kernels::Rows& final) const {
  if (scored_rows_ == 0 || scored_generation_ != scratch_.generation()) return std::nullopt;
  const kernels::Slice begin = model_.final_rows(scratch_, 1).data;
  if (final.data.buffer != begin.buffer || final.data.offset_bytes < begin.offset_bytes) return std::nullopt;
  const uint64_t first =
      (final.data.offset_bytes - begin.offset_bytes) / (uint64_t{model_.config().hidden} * sizeof(float));
  if (first + final.rows > scored_rows_) return std::nullopt;
  return static_cast<uint32_t>(first);
}

std::optional<std::vector<uint32_t>> TokenPicker::likeliest(const kernels::Rows& final) {
  if (memory_ == nullptr || final.rows > kMaxRecordedRows) return std::nullopt;
  std::optional<uint32_t> first = scored_at(final);
  if (!first || draw_) {
    scored_rows_ = 0;  // their place is taken
    draw_.reset();
    score(final, Choice::highest);
    download_choices(final.rows);
    queue_.synchronize();
    first = 0;
  }
  const auto tokens = chosen().subspan(*first, final.rows);
  if (std::ranges::find(tokens, kernels::kNoToken) != tokens.end()) return std::nullopt;
  DSPACK_CHECK(std::ranges::max(tokens) < model_.config().vocab, "the highest of other logits");
  return std::vector(tokens.begin(), tokens.end());
}

std::optional<uint32_t> TokenPicker::drawn(const kernels::Rows& final, const TokenDraw& draw) {
  DSPACK_CHECK(final.rows == 1, "one hidden state at a time");
  if (memory_ == nullptr || !can_draw()) return std::nullopt;
  std::optional<uint32_t> row = scored_at(final);
  if (!row || draw_ != draw) {
    scored_rows_ = 0;  // their place is taken
    upload(draw);
    score(final, Choice::drawn);
    download_choices(1);
    queue_.synchronize();
    row = 0;
  }
  const uint32_t token = chosen()[*row];
  return token == kernels::kNoToken ? std::nullopt : std::optional(token);
}

void TokenPicker::logits(const kernels::Rows& final, std::span<float> into, Trace* trace) {
  const std::optional<uint32_t> scored = scored_at(final);
  if (!scored) return model_.logits(final, model_.head(), scratch_, into, trace);
  DSPACK_CHECK(into.size() == size_t{final.rows} * model_.config().vocab, "no place for the logits");
  const kernels::Rows logits = model_.score_rows(scratch_, kMaxRecordedRows);
  queue_.download(std::as_writable_bytes(into), rows_of(logits, *scored, final.rows).data);
  queue_.synchronize();
}

Result<uint32_t> TokenPicker::pick(const kernels::Rows& final, std::span<const uint32_t> context,
                                   const Sampler& sampler) {
  if (sampler.takes_highest()) {
    if (const auto tokens = likeliest(final)) return tokens->front();
  } else if (const auto draw = draw_of(sampler, context)) {
    if (const auto token = drawn(final, *draw)) return *token;
  }
  logits_.resize(model_.config().vocab);
  logits(final, logits_);
  return sampler.sample(logits_, context);
}

Result<uint32_t> TokenPicker::choose(const kernels::Rows& scores, std::span<const uint32_t> context,
                                     const Sampler& sampler) {
  scored_rows_ = 0;  // another pass's logits have taken the place
  draw_.reset();
  if (memory_ != nullptr && sampler.takes_highest()) {
    queue_.argmax(scores, choices_);
    download_choices(1);
    queue_.synchronize();
    const uint32_t token = chosen().front();
    DSPACK_CHECK(token == kernels::kNoToken || token < model_.config().vocab, "the highest of other logits");
    if (token != kernels::kNoToken) return token;
  }
  logits_.resize(model_.config().vocab);
  queue_.download(std::as_writable_bytes(std::span(logits_)), scores.data);
  queue_.synchronize();
  return sampler.sample(logits_, context);
}

}  // namespace dspack::runtime
