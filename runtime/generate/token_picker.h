// Which token follows: the likeliest, or one drawn from the logits. If the logits lie in a device's memory, it makes
// the choice where possible, as the end of the pass, so that a token costs a few bytes and not its logits. Threads:
// single-thread. Lifetime: borrows model and scratch memory. Errors: budget when made; those of the sampler.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/generate/sampler.h"
#include "runtime/model/model.h"

namespace dspack::runtime {

/// How a token is drawn, and with what noise.
struct TokenDraw {
  kernels::SampleSettings settings;
  kernels::NoiseKey noise;
  [[nodiscard]] bool operator==(const TokenDraw&) const = default;
};

/// Rows of logits in memory at once, where not one answer has more; 64 of V3 are 33 MB.
inline constexpr uint32_t kScoredRows = 64;

class TokenPicker final : private PassEnd {
 public:
  [[nodiscard]] static Result<std::unique_ptr<TokenPicker>> make(const Model& model, Scratch& scratch);

  /// The end of a pass of so many rows whose tokens will be asked for, by `draw` where it is one row that is drawn.
  /// nullptr: here the pass needs none. It belongs to the next pass in the scratch memory.
  [[nodiscard]] PassEnd* end_of_pass(uint32_t rows, const std::optional<TokenDraw>& draw = std::nullopt);
  /// The same for a sampler that is going to pick the token after `context`, after a pass of one row.
  [[nodiscard]] PassEnd* end_of_pass(const Sampler& sampler, std::span<const uint32_t> context) {
    return end_of_pass(1, draw_of(sampler, context));
  }

  /// The token that follows `context`, of whose last one `final` is the hidden state.
  [[nodiscard]] Result<uint32_t> pick(const kernels::Rows& final, std::span<const uint32_t> context,
                                      const Sampler& sampler);

  /// Logits of final hidden states: FP32 [rows, vocab] into host memory.
  void logits(const kernels::Rows& final, std::span<float> into, Trace* trace = nullptr);
  /// Of final hidden states the tokens with the highest logits, the lowest of equals, where the device can tell for
  /// less than the logits cost. Nullopt: look at the logits; they lie in the host's memory, are not all finite, or
  /// there are more than kMostRecordedRows.
  [[nodiscard]] std::optional<std::vector<uint32_t>> likeliest(const kernels::Rows& final);
  /// The same with another head than the model's.
  [[nodiscard]] std::optional<std::vector<uint32_t>> likeliest(const kernels::Rows& final, const Linear& head);
  /// Likewise of one state the token that `draw` names, the one that the sampler would draw from the logits.
  [[nodiscard]] std::optional<uint32_t> drawn(const kernels::Rows& final, const TokenDraw& draw);

  /// Of the device's memory.
  [[nodiscard]] uint64_t scratch_bytes() const { return memory_ ? memory_->size_bytes() : 0; }

 private:
  enum class Choice : uint32_t { highest = 1, drawn = 2 };
  TokenPicker(const Model& model, Scratch& scratch) : model_(model), scratch_(scratch), queue_(model.queue()) {}
  [[nodiscard]] static std::optional<TokenDraw> draw_of(const Sampler& sampler, std::span<const uint32_t> context);

  [[nodiscard]] uint32_t number() const override { return static_cast<uint32_t>(ending_.choice); }
  void prepare() override;
  void enqueue(const kernels::Rows& final) override;
  void collect() override;

  [[nodiscard]] bool can_draw() const;
  void score(const kernels::Rows& final, const Linear& head, Choice choice);
  void upload(const TokenDraw& draw);
  [[nodiscard]] std::span<const uint32_t> chosen() const;
  /// Enqueues the download of so many choices.
  void download_choices(uint32_t rows);
  /// The first of the pass's rows that `final` is, if all of them have been scored and lie there still.
  [[nodiscard]] std::optional<uint32_t> scored_at(const kernels::Rows& final) const;

  const Model& model_;
  Scratch& scratch_;
  kernels::Queue& queue_;
  std::unique_ptr<kernels::Buffer> memory_;  // of a device that is not the host: the places below
  kernels::Slice choices_;                   // u32 [kMostRecordedRows]
  kernels::Slice draw_place_;                // TokenDraw
  std::unique_ptr<kernels::Buffer> chosen_;  // of the host: choices_ as they came last
  struct Ending {
    Choice choice = Choice::highest;
    uint32_t rows = 0;
    std::optional<TokenDraw> draw;
  };
  Ending ending_;                   // of the next pass
  uint32_t scored_rows_ = 0;        // of the pass whose logits and choices are on the device: all of its rows
  uint64_t scored_generation_ = 0;  // of the scratch memory, at that pass
  std::optional<TokenDraw> draw_;   // that made the choice; absent: the highest was chosen. Borrowed by its upload
  std::vector<float> logits_;       // of one row
};

class MtpModule;

/// What all conversations with a model share. Borrows all of it.
struct Engine {
  const Model& model;
  Scratch& scratch;
  TokenPicker& picker;
  const MtpModule* mtp = nullptr;  // nullptr: none, nobody drafts
};

}  // namespace dspack::runtime
