// The always-needed weights of a pass's layers. Those that memory has room for are loaded once; the others are brought
// in every pass, each into one of a few buffers that take turns, while the layers before it compute.
//
//   pass    0  1  2* 3* 4*  0  1  2* ..      * streams, two buffers
//   buffer        A  B  A         B          3 begins to come when 2 is handed out, 4 with 3, 2 with 4
//
// Where the host computes they are read. To a device they are copied on a queue of their own, from the host's memory
// where that keeps them, else block by block as they are read.
//
// Threads: one thread asks; a pool of the store's own reads. Lifetime: borrows the configuration and what the
// LoadContext borrows.
// Errors: those of finding and reading weights, with the layer; budget (memory); cancelled.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "format/layer_map.h"
#include "runtime/experts/transfer_pool.h"
#include "runtime/model/layer.h"

namespace dspack::runtime {

struct LayerStreaming {
  std::set<LayerId> layers;     // that are brought in every pass
  uint32_t buffers = 2;         // with one, a layer begins to come when it is wanted
  std::set<LayerId> kept = {};  // of these, where a device computes: those that stay in the host's memory
};

class LayerStore {
 public:
  /// `pass`: the layers in the order in which a token passes them. Loads those that stay.
  [[nodiscard]] static Result<std::unique_ptr<LayerStore>> load(const LoadContext& context, const ModelConfig& config,
                                                                const AttentionOptions& attention,
                                                                const format::LayerMap& pass,
                                                                const LayerStreaming& streaming,
                                                                const std::stop_token& stop);
  ~LayerStore();

  /// Weights of the layer that comes `index`-th in the pass, until the next call. What was computed with those of the
  /// call before must be enqueued already.
  [[nodiscard]] Result<const LayerWeights*> weights(uint32_t index, const std::stop_token& stop);

  /// A layer that stays; nullptr: it streams.
  [[nodiscard]] const LayerWeights* at_hand(LayerId layer) const {
    const auto found = resident_.find(layer);
    return found == resident_.end() ? nullptr : found->second.get();
  }

  /// Of all layers of the pass, those that come twice counted twice.
  [[nodiscard]] WeightWork work() const;
  /// Of the layers that stay, and of all buffers.
  [[nodiscard]] uint64_t memory_bytes() const;

 private:
  struct Streamed {
    LayerWeights weights;
    std::optional<WeightGroup> group;
    std::unique_ptr<kernels::Buffer> kept;  // all of it in the host's memory, from where it is copied; null: it is read
  };
  class Reading;
  // A place for one streamed layer.
  struct Place {
    std::unique_ptr<kernels::Buffer> memory;
    std::unique_ptr<kernels::Buffer> staging;  // of the host: what is read, where it cannot address `memory`; else null
    Streamed* holds = nullptr;                 // there, or on its way
    std::shared_ptr<Reading> reading;          // until it was waited for
    std::shared_ptr<kernels::Event> arrival;   // of what was copied there last; null: nothing was
  };

  LayerStore(const LoadContext& context, format::LayerMap pass);
  Result<void> make_places(uint32_t buffers);
  /// Reads the layers that the host's memory keeps.
  Result<void> keep(const std::set<LayerId>& layers, const std::stop_token& stop);
  [[nodiscard]] std::shared_ptr<Reading> start_reading(const Streamed& layer, std::span<std::byte> into);
  /// The layer begins to come to the place.
  void start(Streamed& layer, Place& place);
  /// What is enqueued from now on finds the layer in its place.
  Result<void> finish(Place& place, const std::stop_token& stop);
  void copy(Place& place, uint64_t offset, std::span<const std::byte> from);
  [[nodiscard]] Place* place_of(const Streamed& layer);
  [[nodiscard]] Streamed* next_streamed(uint32_t index);

  LoadContext context_;
  format::LayerMap pass_;
  std::map<LayerId, std::unique_ptr<LayerWeights>> resident_;
  std::map<LayerId, std::unique_ptr<Streamed>> streamed_;
  std::vector<Place> places_;
  size_t current_ = 0;                       // the place that was handed out last
  std::unique_ptr<kernels::Queue> copies_;   // to places; null where the host computes
  std::unique_ptr<TransferPool> transfers_;  // last: its threads use the places. Absent: nothing streams
};

}  // namespace dspack::runtime
