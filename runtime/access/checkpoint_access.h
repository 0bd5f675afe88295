// Where the bytes of a checkpoint's weights are, and how they get here: a catalogue, and the tiers that have the bytes.
// It is opened in stages, so that nothing is asked of a place before it is needed: the place with its small files, the
// catalogue (after config.json), the weights (after the device was chosen). A part of a model may be completed by the
// place that has the rest: then the catalogue and the tiers are those of both.
// Threads: single-thread, the tier thread-safe. Lifetime: owns the places and the tier; neither copied nor moved.
// Errors: those of places and tiers; invalid (no part of a model, the rest is of another checkpoint), not_found (the
// manifest does not name the place that has the rest, or that has nothing of it).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "runtime/access/place.h"

namespace dspack::runtime {

/// In place of an address: where the part's manifest says that it was made from.
inline constexpr std::string_view kOriginWord = "origin";

/// What a part of a model lacks.
struct AbsentWeights {
  uint64_t experts = 0;
  uint64_t expert_bytes = 0;
  uint64_t other_tensors = 0;
  uint64_t other_bytes = 0;
};

class CheckpointAccess {
 public:
  explicit CheckpointAccess(Place place);
  CheckpointAccess(const CheckpointAccess&) = delete;
  CheckpointAccess& operator=(const CheckpointAccess&) = delete;

  using PlaceOpener = std::function<Result<Place>(const std::string& address)>;
  /// The place holds a part of a model; opens the one that has the rest. `rest`: an address, or kOriginWord.
  [[nodiscard]] Result<void> complete_from(const std::string& rest, const PlaceOpener& open,
                                           const std::stop_token& stop);

  /// What is asked of the distant place, of two the one that has the rest; null: there is none.
  [[nodiscard]] std::shared_ptr<const format::TransferCounters> transfers() const;

  /// Who is told of opening and loading: of that place, of two that of the rest; null: nobody.
  [[nodiscard]] std::shared_ptr<format::Progress> progress() const { return places_.back().place.progress; }

  /// Its small files.
  [[nodiscard]] format::Repository& files() { return *places_.front().place.files; }

  /// `layers`: of config.json, without MTP modules.
  [[nodiscard]] Result<void> open_catalogue(uint32_t layers, const std::stop_token& stop);
  [[nodiscard]] const format::Checkpoint& catalogue() const { return catalogue_; }
  /// In place of opening catalogue and weights, for a plan of a model that nobody has read: this catalogue, and weights
  /// that cannot be read. `medium`: where they are supposed to lie.
  void suppose(format::Checkpoint catalogue, Medium medium);
  /// After open_catalogue. nullopt: the place is all there is.
  [[nodiscard]] std::optional<AbsentWeights> absent() const;
  /// The address of the place that has the rest, without secrets. Precondition: complete_from.
  [[nodiscard]] std::string rest_address() const;

  /// After open_catalogue, which learns the digests of earlier runs. Of weights nothing is fetched yet, but for a few
  /// small tensors of a place that must prove to have the rest of a part.
  [[nodiscard]] Result<void> open_weights(const LocalAccess& local, const std::stop_token& stop);
  // After open_weights.
  [[nodiscard]] Tier& weights() { return *opened_.tier; }
  [[nodiscard]] const Tier& weights() const { return *opened_.tier; }
  /// How a local folder is read; where there are two places, the part's.
  [[nodiscard]] const IoChoice& io() const { return opened_.io; }

  /// Fills `into` with bytes of a tensor of no routed expert, from `offset` relative to its first byte, and counts
  /// them.
  [[nodiscard]] Result<void> read(const format::TensorEntry& tensor, uint64_t offset, std::span<std::byte> into,
                                  WeightPurpose purpose, const std::stop_token& stop);
  /// Counts what was read by other means.
  void count(WeightPurpose purpose, uint64_t bytes) { bytes_read_[static_cast<size_t>(purpose)] += bytes; }
  [[nodiscard]] uint64_t bytes_read(WeightPurpose purpose) const { return bytes_read_[static_cast<size_t>(purpose)]; }

 private:
  /// A place, and what its own catalogue has where there are two.
  struct Source {
    Place place;
    format::Checkpoint catalogue{};
  };
  [[nodiscard]] static Result<format::Checkpoint> read_catalogue(const Place& place, const std::stop_token& stop);
  [[nodiscard]] Result<format::Checkpoint> join_catalogues(uint32_t layers, const std::stop_token& stop);
  [[nodiscard]] Result<void> open_overlay(const LocalAccess& local, const std::stop_token& stop);
  /// Headers and sizes are the same for every model of one shape; bytes are not.
  [[nodiscard]] Result<void> compare_bytes(Tier& rest, const std::stop_token& stop) const;
  /// A difference between the two places, for people.
  [[nodiscard]] Error another_checkpoint(const Error& difference) const;

  std::vector<Source> places_;  // the second has what the first, a part, lacks
  format::Checkpoint catalogue_;
  std::vector<uint32_t> own_;     // of format::Completion
  std::vector<uint32_t> absent_;  // of format::Completion
  OpenedTier opened_;
  PurposeBytes bytes_read_{};
};

}  // namespace dspack::runtime
