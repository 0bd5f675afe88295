// A checkpoint's weights: a catalogue of where their bytes are, and the tiers that read them. A part of a model may be
// completed by the place that has the rest; catalogue and tiers then cover both.
// Threads: single-thread, the tier thread-safe. Lifetime: owns the places and the tier; neither copied nor moved.
// Errors: those of places and tiers; invalid (not a part of a model, or the rest is of another checkpoint), not_found
// (the manifest does not name the place that has the rest, or that has nothing of it).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "runtime/access/place.h"

namespace dspack::runtime {

/// Stands for the address that the part's manifest names as its origin.
inline constexpr std::string_view kOriginWord = "origin";

/// Weights that a part of a model lacks.
struct AbsentWeights {
  uint64_t experts = 0;
  uint64_t expert_bytes = 0;
  uint64_t other_tensors = 0;
  uint64_t other_bytes = 0;
};

/// Opened in stages, so that nothing is requested from a place before it is needed:
///   place with its small files -> [complete_from] -> open_catalogue (after config.json) -> open_weights (after the
///   device was chosen) -> read, weights()
/// A plan without weights calls suppose() instead of open_catalogue and open_weights.
class CheckpointAccess {
 public:
  explicit CheckpointAccess(CheckpointPlace place);
  CheckpointAccess(const CheckpointAccess&) = delete;
  CheckpointAccess& operator=(const CheckpointAccess&) = delete;

  using PlaceOpener = std::function<Result<CheckpointPlace>(const std::string& address)>;
  /// Precondition: the place holds a part of a model. Opens the place that has the rest. `rest`: an address, or
  /// kOriginWord.
  [[nodiscard]] Result<void> complete_from(const std::string& rest, const PlaceOpener& open,
                                           const std::stop_token& stop);

  /// Counters of requests to the distant place; if both are distant, to the one that has the rest. null: none is
  /// distant.
  [[nodiscard]] std::shared_ptr<const format::TransferCounters> transfers() const;

  /// Receives the progress of opening and loading: the place's, or with two places that of the rest. May be null.
  [[nodiscard]] std::shared_ptr<format::Progress> progress() const { return places_.back().place.progress; }

  /// The place's small files; with two places, the part's.
  [[nodiscard]] format::Repository& files() { return *places_.front().place.files; }

  /// `layers`: number in config.json, without MTP modules.
  [[nodiscard]] Result<void> open_catalogue(uint32_t layers, const std::stop_token& stop);
  [[nodiscard]] const format::Checkpoint& catalogue() const { return catalogue_; }
  /// For the plan of a model whose weights are not read: uses this catalogue, with weights that cannot be read, instead
  /// of open_catalogue and open_weights. `medium`: where the weights are assumed to be.
  void suppose(format::Checkpoint catalogue, Medium medium);
  /// After open_catalogue. nullopt: there is only one place.
  [[nodiscard]] std::optional<AbsentWeights> absent() const;
  /// The address of the place that has the rest, without secrets. Precondition: complete_from.
  [[nodiscard]] std::string rest_address() const;

  /// After open_catalogue; adds the digests of earlier runs to the catalogue. Fetches no weights yet, except a few
  /// small tensors to prove that a place has the rest of a part.
  [[nodiscard]] Result<void> open_weights(const LocalAccess& local, const std::stop_token& stop);
  // After open_weights.
  [[nodiscard]] Tier& weights() { return *opened_.tier; }
  [[nodiscard]] const Tier& weights() const { return *opened_.tier; }
  /// How a local folder is read; with two places, the part's.
  [[nodiscard]] const IoChoice& io() const { return opened_.io; }

  /// Fills `into` with bytes of a tensor that belongs to no routed expert, from `offset` relative to its first byte,
  /// and counts them.
  [[nodiscard]] Result<void> read(const format::TensorEntry& tensor, uint64_t offset, std::span<std::byte> into,
                                  WeightPurpose purpose, const std::stop_token& stop);
  /// Counts bytes that were read by other means.
  void count(WeightPurpose purpose, uint64_t bytes) { bytes_read_[static_cast<size_t>(purpose)] += bytes; }
  [[nodiscard]] uint64_t bytes_read(WeightPurpose purpose) const { return bytes_read_[static_cast<size_t>(purpose)]; }

 private:
  /// A place, and if there are two places, its own catalogue.
  struct Source {
    CheckpointPlace place;
    format::Checkpoint catalogue{};
  };
  [[nodiscard]] static Result<format::Checkpoint> read_catalogue(const CheckpointPlace& place,
                                                                 const std::stop_token& stop);
  [[nodiscard]] Result<format::Checkpoint> join_catalogues(uint32_t layers, const std::stop_token& stop);
  [[nodiscard]] Result<void> open_overlay(const LocalAccess& local, const std::stop_token& stop);
  /// Compares a few tensors by digest: models of one shape have the same headers and sizes.
  [[nodiscard]] Result<void> compare_bytes(Tier& rest, const std::stop_token& stop) const;
  /// The error that the two places are of different checkpoints, for people.
  [[nodiscard]] Error another_checkpoint(const Error& difference) const;

  std::vector<Source> places_;  // the part, then the place that has the rest
  format::Checkpoint catalogue_;
  std::vector<uint32_t> own_;     // format::Completion::own
  std::vector<uint32_t> absent_;  // format::Completion::absent
  OpenedTier opened_;
  PurposeBytes bytes_read_{};
};

}  // namespace dspack::runtime
