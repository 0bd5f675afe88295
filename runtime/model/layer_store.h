// The always-needed weights of a pass's layers. Layers that fit in memory are loaded once; the others stream: every
// pass brings each into one of a few alternating buffers while earlier layers compute.
//
//   pass    0  1  2* 3* 4*  0  1  2* ..      * streams, two buffers
//   buffer        A  B  A         B          3 starts to load when 2 is handed out, 4 with 3, 2 with 4
//
// If the host computes, streamed layers are read into place. For a device they are copied on a separate queue: from
// host memory if it keeps them, else block by block as they are read.
//
// Threads: one caller; the store's own pool reads. Lifetime: borrows the configuration and what the LoadContext
// borrows. Errors: those of finding and reading weights, with the layer; budget (memory); cancelled.
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
  std::set<LayerId> layers;     // streamed in every pass
  uint32_t buffers = 2;         // with one, a layer is only loaded when it is requested
  std::set<LayerId> kept = {};  // streamed layers kept in host memory, if a device computes
};

class LayerStore {
 public:
  /// `pass`: the layers in the order of the pass. Loads those that do not stream.
  [[nodiscard]] static Result<std::unique_ptr<LayerStore>> load(const LoadContext& context, const ModelConfig& config,
                                                                const AttentionOptions& attention,
                                                                const format::LayerMap& pass,
                                                                const LayerStreaming& streaming,
                                                                const std::stop_token& stop);
  ~LayerStore();

  /// Weights of the pass's `index`-th layer, valid until the next call. Blocks until they are loaded. Precondition: all
  /// operations on the previous call's weights are enqueued.
  [[nodiscard]] Result<const LayerWeights*> weights(uint32_t index, const std::stop_token& stop);

  /// A resident layer; nullptr: it streams.
  [[nodiscard]] const LayerWeights* at_hand(LayerId layer) const {
    const auto found = resident_.find(layer);
    return found == resident_.end() ? nullptr : found->second.get();
  }

  /// Work of all layers of the pass; repeated layers count each time.
  [[nodiscard]] WeightWork work() const;
  /// Bytes of resident layers and of the buffers; without copies in host memory.
  [[nodiscard]] uint64_t memory_bytes() const;

 private:
  struct Streamed {
    LayerWeights weights;
    std::optional<WeightGroup> group;
    std::unique_ptr<kernels::Buffer> kept;  // the layer in host memory, copied in every pass; null: read in every pass
  };
  class Reading;
  // A buffer for one streamed layer.
  struct LayerBuffer {
    std::unique_ptr<kernels::Buffer> memory;
    std::unique_ptr<kernels::Buffer> staging;  // host memory to read into, if it cannot address `memory`; else null
    Streamed* holds = nullptr;                 // in the buffer, or being loaded
    std::shared_ptr<Reading> reading;          // null once awaited
    std::shared_ptr<kernels::Event> arrival;   // end of the last copy into it; null: none
  };

  LayerStore(const LoadContext& context, format::LayerMap pass);
  Result<void> make_places(uint32_t buffers);
  /// Reads the layers that host memory keeps.
  Result<void> keep(const std::set<LayerId>& layers, const std::stop_token& stop);
  [[nodiscard]] std::shared_ptr<Reading> start_reading(const Streamed& layer, std::span<std::byte> into);
  /// Starts to load the layer into the place.
  void start(Streamed& layer, LayerBuffer& place);
  /// Blocks until the layer is read; later operations run after its copy.
  Result<void> finish(LayerBuffer& place, const std::stop_token& stop);
  void copy(LayerBuffer& place, uint64_t offset, std::span<const std::byte> from);
  [[nodiscard]] LayerBuffer* place_of(const Streamed& layer);
  [[nodiscard]] Streamed* next_streamed(uint32_t index);

  LoadContext context_;
  format::LayerMap pass_;
  std::map<LayerId, std::unique_ptr<LayerWeights>> resident_;
  std::map<LayerId, std::unique_ptr<Streamed>> streamed_;
  std::vector<LayerBuffer> places_;
  size_t current_ = 0;                       // the place handed out last
  std::unique_ptr<kernels::Queue> copies_;   // to places; null if the host computes
  std::unique_ptr<TransferPool> transfers_;  // last, since its threads use the places; null: nothing streams
};

}  // namespace dspack::runtime
