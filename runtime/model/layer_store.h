// The always-needed weights of a pass's layers. Those that memory has room for are loaded once; the others are read in
// every pass, each into one of a few buffers that take turns, while the layers before it compute.
//
//   pass    0  1  2* 3* 4*  0  1  2* ..      * streams, two buffers
//   buffer        A  B  A         B          the read of 3 begins when 2 is handed out, that of 4 with 3, that of 2
//   with 4
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
  std::set<LayerId> layers;  // that are read in every pass
  uint32_t buffers = 2;      // with one, a layer's read begins when it is wanted
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
  };
  struct Reading;
  // A place for one streamed layer.
  struct Place {
    std::unique_ptr<kernels::Buffer> memory;
    std::vector<std::byte> staging;    // what is read, where the host cannot address `memory`; else empty
    Streamed* holds = nullptr;         // read, or being read
    std::shared_ptr<Reading> reading;  // until it was waited for
  };

  LayerStore(const LoadContext& context, format::LayerMap pass);
  Result<void> make_places(uint32_t buffers);
  void start_reading(Streamed& layer, Place& place);
  Result<void> finish_reading(Place& place, const std::stop_token& stop);
  [[nodiscard]] Place* place_of(const Streamed& layer);
  [[nodiscard]] Streamed* next_streamed(uint32_t index);

  LoadContext context_;
  format::LayerMap pass_;
  std::map<LayerId, std::unique_ptr<LayerWeights>> resident_;
  std::map<LayerId, std::unique_ptr<Streamed>> streamed_;
  std::vector<Place> places_;
  size_t current_ = 0;                       // the place that was handed out last
  std::unique_ptr<TransferPool> transfers_;  // last: its threads use the places. Absent: nothing streams
};

}  // namespace dspack::runtime
