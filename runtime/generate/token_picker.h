// Picks the next token: the likeliest, or one drawn from the logits. If the logits are in a device's memory, the device
// chooses if possible, as the end of the pass, so a token costs a download of a few bytes instead of its logits.
// Threads: single-thread. Lifetime: borrows model and scratch memory. Errors: budget when made; those of the sampler.
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

/// Rows of logits in memory at once, unless one answer has more; V3: 64 are 33 MB.
inline constexpr uint32_t kScoredRows = 64;

/// In a pass: end_of_pass() before it, then pick(), likeliest(), drawn() or logits() on its final states. They use the
/// results of the pass's end if these still exist, else they compute them.
class TokenPicker final : private PassEnd {
 public:
  [[nodiscard]] static Result<std::unique_ptr<TokenPicker>> make(const Model& model, Scratch& scratch);

  /// The end for a pass of `rows` rows whose tokens will be asked for; `draw`: how to draw, if it is one row. nullptr:
  /// the pass needs no end here. It belongs to the next pass in the scratch memory.
  [[nodiscard]] PassEnd* end_of_pass(uint32_t rows, const std::optional<TokenDraw>& draw = std::nullopt);
  /// The same for a pass of one row, after which `sampler` picks the token after `context`.
  [[nodiscard]] PassEnd* end_of_pass(const Sampler& sampler, std::span<const uint32_t> context) {
    return end_of_pass(1, draw_of(sampler, context));
  }

  /// The token that follows `context`; `final`: the hidden state of the context's last token.
  [[nodiscard]] Result<uint32_t> pick(const kernels::Rows& final, std::span<const uint32_t> context,
                                      const Sampler& sampler);

  /// Logits of final hidden states: FP32 [rows, vocab] into host memory.
  void logits(const kernels::Rows& final, std::span<float> into, Trace* trace = nullptr);
  /// The tokens with the highest logits, the lowest index among equals, if the device can determine them for less than
  /// the logits cost. Nullopt: use the logits, since they are in host memory, not all finite, or of more than
  /// kMaxRecordedRows rows.
  [[nodiscard]] std::optional<std::vector<uint32_t>> likeliest(const kernels::Rows& final);
  /// The token that `draw` determines for one state, the same that the sampler would draw from the logits. Nullopt: as
  /// above.
  [[nodiscard]] std::optional<uint32_t> drawn(const kernels::Rows& final, const TokenDraw& draw);

  /// The token that follows `context`, given its logits [1, vocab] in the scratch memory's score_rows, whatever they
  /// were made from.
  [[nodiscard]] Result<uint32_t> choose(const kernels::Rows& scores, std::span<const uint32_t> context,
                                        const Sampler& sampler);

  /// Bytes of memory that one takes on a device other than the host.
  [[nodiscard]] static uint64_t device_bytes();
  /// Bytes of device memory.
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
  void score(const kernels::Rows& final, Choice choice);
  void upload(const TokenDraw& draw);
  [[nodiscard]] std::span<const uint32_t> chosen() const;
  /// Enqueues the download of the choices of `rows` rows.
  void download_choices(uint32_t rows);
  /// Index in the last pass of the first row of `final`, if its end has scored all of these rows and the results still
  /// exist.
  [[nodiscard]] std::optional<uint32_t> scored_at(const kernels::Rows& final) const;

  const Model& model_;
  Scratch& scratch_;
  kernels::Queue& queue_;
  std::unique_ptr<kernels::Buffer> memory_;  // device memory of the places below; null if the host computes
  kernels::Slice choices_;                   // u32 [kMaxRecordedRows]
  kernels::Slice draw_place_;                // TokenDraw
  std::unique_ptr<kernels::Buffer> chosen_;  // host memory: the last downloaded choices_
  struct Ending {
    Choice choice = Choice::highest;
    uint32_t rows = 0;
    std::optional<TokenDraw> draw;
  };
  Ending ending_;                   // the next pass's
  uint32_t scored_rows_ = 0;        // rows of the pass whose logits and choices are on the device
  uint64_t scored_generation_ = 0;  // Scratch::generation of that pass
  std::optional<TokenDraw> draw_;   // draw of these choices; absent: the highest. Borrowed by its upload
  std::vector<float> logits_;       // one row
};

class DraftModule;

/// The parts that all conversations with a model share, borrowed.
struct Engine {
  const Model& model;
  Scratch& scratch;
  TokenPicker& picker;
  const DraftModule* mtp = nullptr;  // nullptr: no drafting
};

}  // namespace dspack::runtime
