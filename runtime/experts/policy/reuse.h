// Evicts the expert of the lowest value (ReuseValue). Layers run in turn, so an expert of the layer that has just
// passed is not needed before the next token, and is worth less than an equal one of a layer ahead: this holds with
// fewer slots than one token's experts, where recency alone always misses. A prefill counts as if its tokens had run
// one by one, as far as rows and the last row show; nothing is learned from it. Drafts neither count nor teach until
// accepted; an expert that only drafts have used has no value.
//
//   hit, inserted, used_elsewhere   -> visits_: the uses of one layer in one pass; the next layer's first use ends it:
//                                        learn_token or take_prefill, then rank: its experts in slots by value
//   inserted, prefetched, returned  -> arrivals: experts that got a slot after their layer was ranked
//   victim                          <- the least value * g^(layers ahead / layers) of all layers, each of which offers
//                                        the first of its ranking and of its arrivals that may go
//
// Threads, lifetime, errors: see eviction_policy.h. Cost: O(e log e) per visit of a layer with e experts, O(log e) per
// arrival, one step per layer for a victim; V3: below a millisecond per token.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "runtime/experts/eviction_policy.h"
#include "runtime/experts/policy/victim_order.h"

namespace dspack::runtime {

/// How an expert has been used, in tokens of its layer.
struct UseHistory {
  uint64_t last = 0;    // the token that used it last, counted from 1; 0: none has
  float frequency = 0;  // share of tokens that use it, each weighted by exp(-age / 128)
};

/// Decay of the frequency per token.
inline constexpr float kFrequencyStep = 1.0F / 128.0F;

/// The value of keeping an expert, learned during the run. An expert's state is how many tokens ago it was last used
/// and how often lately; its value is the mean of g^t, where t is the number of tokens until the next use and g < 1: 1
/// if the next token needs it, nearly 0 if it is not needed for long. Each token gives an example for every expert seen
/// so far, in a slot or not: V3 gives 15,000 examples per token, so that a table of some hundred states is learned
/// within a few tokens (temporal-difference learning, Sutton 1988).
class ReuseValue {
 public:
  static constexpr double kDiscount = 0.8;  // g
  static constexpr uint32_t kAges = 24;
  static constexpr uint32_t kFrequencies = 12;

  ReuseValue();

  using HistoryState = uint16_t;
  /// The state before token `now` of a history whose last use came before it.
  [[nodiscard]] static HistoryState state_of(const UseHistory& history, uint64_t now);
  [[nodiscard]] float value(HistoryState state) const { return values_[state].mean; }
  /// A token came while the expert was in `state`. `used`: it used the expert; else that is now in state `next`.
  void learn(HistoryState state, bool used, HistoryState next);

 private:
  struct Estimate {
    float mean = 0;
    uint32_t examples = 0;
  };
  std::array<Estimate, size_t{kAges} * kFrequencies> values_;
};

/// A visit: the experts that one layer used in one pass. An accepted draft is reported after its pass, so it makes a
/// separate visit, as the token would have.
struct LayerVisit {
  LayerId layer;
  uint64_t pass = 0;
  Phase phase = Phase::decode;
  /// In a prefill: 1 + the oldest row that any layer has reported so far, so all tokens after one layer.
  uint32_t tokens = 1;
  std::vector<ExpertUse> uses;  // without drafts
};

/// Groups the single uses that a policy receives into visits.
class LayerVisits {
 public:
  /// Adds a use. Returns the visit that this use ends by belonging to another one.
  [[nodiscard]] std::optional<LayerVisit> add(const ExpertUse& use) {
    std::optional<LayerVisit> ended;
    if (!present_ || present_->layer != use.key.layer || present_->pass != use.pass) {
      const uint32_t tokens = present_ && present_->pass == use.pass ? present_->tokens : 1;
      ended = std::move(present_);
      present_ = LayerVisit{.layer = use.key.layer, .pass = use.pass, .phase = use.phase, .tokens = tokens, .uses = {}};
    }
    if (use.phase == Phase::prefill) present_->tokens = std::max(present_->tokens, use.last_row + 1);
    if (!use.is_draft) present_->uses.push_back(use);
    return ended;
  }
  /// The current layer; nullopt: none has begun.
  [[nodiscard]] std::optional<LayerId> present() const {
    return present_ ? std::optional(present_->layer) : std::nullopt;
  }

 private:
  std::optional<LayerVisit> present_;
};

class ReusePolicy final : public EvictionPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "reuse"; }
  void hit(const ExpertUse& use) override;
  void inserted(const ExpertUse& use) override;
  void prefetched(ExpertKey key, uint64_t pass) override;
  void used_elsewhere(const ExpertUse& use) override { note(use); }
  void returned(ExpertKey key, uint64_t pass) override;
  void removed(ExpertKey key) override;
  void hold(ExpertKey key) override;
  void let_go() override;
  [[nodiscard]] std::optional<ExpertKey> victim(const std::function<bool(ExpertKey)>& may_go) override;

 private:
  struct Expert {
    UseHistory history;
    ReuseValue::HistoryState state = 0;
    float value = 0;       // 0: never used
    uint64_t arrival = 0;  // number of its last arrival in a slot, from 1
    bool in_slot = false;
    bool is_ranked = false;  // in its layer's ranking
    bool is_held = false;
  };
  /// An expert that got a slot after its layer was ranked.
  struct Arrival {
    float value = 0;
    uint64_t arrival = 0;
    uint32_t expert = 0;
    friend bool operator<(const Arrival& a, const Arrival& b) {
      return std::tie(a.value, a.arrival) < std::tie(b.value, b.arrival);
    }
  };
  struct Layer {
    explicit Layer(LayerId layer) : id(layer) {}
    LayerId id;
    uint64_t tokens = 0;            // seen so far
    std::vector<Expert> experts;    // by number
    std::vector<uint32_t> ranking;  // experts in slots when the last visit ended, least value first
    size_t gone = 0;                // leading entries of the ranking that have left their slots
    size_t passed = 0;              // leading entries that are gone or held
    VictimOrder<Arrival> arrivals;  // in slots, not in the ranking yet
  };

  Layer& layer_of(LayerId id);
  size_t place_of(LayerId id);  // index in layers_
  // The least valuable expert of the layer's ranking that may go.
  static std::optional<uint32_t> layer_victim(Layer& layer, const std::function<bool(ExpertKey)>& may_go);
  Expert& expert_of(ExpertKey key);
  [[nodiscard]] static Arrival arrival_of(const Layer& layer, uint32_t expert);
  void arrive(ExpertKey key, float value);
  void note(const ExpertUse& use);
  void end(const LayerVisit& visit);
  void learn_token(Layer& layer, const LayerVisit& visit);
  void take_prefill(Layer& layer, const LayerVisit& visit);
  void rank(Layer& layer);

  ReuseValue value_;
  LayerVisits visits_;
  std::vector<Layer> layers_;     // ascending
  std::vector<float> discounts_;  // by number of layers ahead
  std::vector<ExpertKey> held_;
  uint64_t arrivals_ = 0;
};

}  // namespace dspack::runtime
