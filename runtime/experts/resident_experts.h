// All routed experts of a model's layers in device memory, for devices that hold them: one buffer a layer, its experts
// side by side, and a table of them for kernels that look them up themselves.
// Experts reach the device through the host's memory: a streamed store of a few slots reads, checks and repeats as in a
// streamed run, and each expert is uploaded as it arrives. So a device whose memory the host cannot address is filled
// in the same way as one whose memory it can.
// Threads: load: single-thread; afterwards immutable. Lifetime: borrows device; queue, storage and progress only for
// the load. Errors: those of expert_store.h, not_found for an expert that the checkpoint lacks among them; unsupported
// (experts of one layer that differ in how they are stored); budget (device memory); cancelled.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <vector>

#include "format/progress.h"
#include "runtime/experts/expert_store.h"
#include "runtime/experts/slot_plan.h"
#include "runtime/experts/store_stats.h"
#include "runtime/storage/weight_storage.h"

namespace dspack::runtime {

/// Experts in the host's memory while they are read: enough that reading does not pause for an upload, also where an
/// expert is read by one thread from its beginning to its end. Of V3: 530 MB.
inline constexpr uint64_t kReaderSlots = 12;

struct ResidentOptions {
  ExpertShape shape;
  uint32_t experts = 0;      // of each layer
  std::set<LayerId> layers;  // whose experts a run may want
};

class ResidentExperts {
 public:
  /// `progress`: told of the bytes that have reached the device; nullptr: nobody is.
  [[nodiscard]] static Result<std::unique_ptr<ResidentExperts>> load(kernels::Device& device, kernels::Queue& queue,
                                                                     WeightStorage& storage,
                                                                     const ResidentOptions& options,
                                                                     format::Progress* progress,
                                                                     const std::stop_token& stop);
  /// Device memory that they would take; nothing is read. Errors: those of `load` that the catalogue tells.
  [[nodiscard]] static Result<uint64_t> bytes_for(const format::Checkpoint& checkpoint, const ResidentOptions& options);

  /// Precondition of both: the layer is among those loaded.
  [[nodiscard]] const kernels::ExpertTable& table(LayerId layer) const { return *at(layer).table; }
  [[nodiscard]] const ExpertWeights& weights(LayerId layer, ExpertId expert) const;

  [[nodiscard]] uint64_t size_bytes() const;
  /// Of the loading: what was read and from where.
  [[nodiscard]] const ExpertStoreStats& stats() const { return stats_; }

 private:
  /// Where an expert's matrices lie, counted from the expert's place.
  struct Place {
    SlotPlan::Matrix matrix;
    uint64_t data_bytes = 0, scale_bytes = 0;
  };
  struct Layout {
    std::array<Place, 3> places;  // gate, up, down
    uint64_t expert_bytes = 0;
  };
  struct Layer {
    Layout layout;
    std::unique_ptr<kernels::Buffer> memory;
    std::vector<ExpertWeights> experts;
    std::unique_ptr<kernels::ExpertTable> table;
  };

  ResidentExperts() = default;
  [[nodiscard]] static Result<std::map<LayerId, Layout>> lay_out(const format::Checkpoint& checkpoint,
                                                                 const ResidentOptions& options);
  [[nodiscard]] static Layout layout_of(const SlotPlan& plan);
  [[nodiscard]] static ExpertWeights weights_at(const Layout& layout, kernels::Slice begin);
  Result<void> allocate(kernels::Device& device, const std::map<LayerId, Layout>& layouts, uint32_t experts);
  Result<void> fill(Layer& layer, LayerId id, ExpertStore& reader, kernels::Queue& queue, format::Progress& progress,
                    const std::stop_token& stop);
  void keep_stats(const ExpertStoreStats& reading);
  [[nodiscard]] const Layer& at(LayerId layer) const;

  std::map<LayerId, Layer> layers_;
  ExpertStoreStats stats_;
};

}  // namespace dspack::runtime
