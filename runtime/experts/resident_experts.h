// All routed experts of a model's layers in device memory, for devices that hold them: one buffer a layer, its experts
// side by side, and a table of them for kernels that look them up themselves.
// Experts reach the device through the host's memory: a streamed store of a few slots reads, checks and repeats as in a
// streamed run, and each expert is uploaded as it arrives. So a device whose memory the host cannot address is filled
// in the same way as one whose memory it can.
// Threads: load: single-thread; afterwards immutable. Lifetime: borrows device; queue, storage and progress only for
// the load. Errors: those of expert_store.h, not_found for an expert that the checkpoint lacks among them; unsupported
// (experts of one layer that differ in how they are stored); budget (device memory); cancelled.
#pragma once

#include <map>
#include <memory>
#include <stop_token>
#include <vector>

#include "format/progress.h"
#include "runtime/experts/expert_layout.h"
#include "runtime/experts/expert_store.h"
#include "runtime/experts/store_stats.h"
#include "runtime/storage/weight_storage.h"

namespace dspack::runtime {

/// Experts in the host's memory while they are read: enough that reading does not pause for an upload, also where an
/// expert is read by one thread from its beginning to its end. Of V3: 530 MB.
inline constexpr uint64_t kReaderSlots = 12;

class ResidentExperts {
 public:
  /// `progress`: told of the bytes that have reached the device; nullptr: nobody is.
  [[nodiscard]] static Result<std::unique_ptr<ResidentExperts>> load(kernels::Device& device, kernels::Queue& queue,
                                                                     WeightStorage& storage,
                                                                     const DeviceExperts& wanted,
                                                                     format::Progress* progress,
                                                                     const std::stop_token& stop);
  /// Device memory that they would take; nothing is read. Errors: those of `load` that the catalogue tells.
  [[nodiscard]] static Result<uint64_t> bytes_for(const format::Checkpoint& checkpoint, const DeviceExperts& wanted);

  /// Precondition of both: the layer is among those loaded.
  [[nodiscard]] const kernels::ExpertTable& table(LayerId layer) const { return *at(layer).table; }
  [[nodiscard]] const ExpertWeights& weights(LayerId layer, ExpertId expert) const;

  [[nodiscard]] uint64_t size_bytes() const;
  /// Of the loading: what was read and from where.
  [[nodiscard]] const ExpertStoreStats& stats() const { return stats_; }

 private:
  struct Layer {
    ExpertLayout layout;
    std::unique_ptr<kernels::Buffer> memory;
    std::vector<ExpertWeights> experts;
    std::unique_ptr<kernels::ExpertTable> table;
  };

  ResidentExperts() = default;
  Result<void> allocate(kernels::Device& device, const std::map<LayerId, ExpertLayout>& layouts, uint32_t experts);
  Result<void> fill(Layer& layer, LayerId id, ExpertStore& reader, kernels::Queue& queue, format::Progress& progress,
                    const std::stop_token& stop);
  void keep_stats(const ExpertStoreStats& reading);
  [[nodiscard]] const Layer& at(LayerId layer) const;

  std::map<LayerId, Layer> layers_;
  ExpertStoreStats stats_;
};

}  // namespace dspack::runtime
