// A further device, beside the one that runs the layers: it computes the experts that belong to it, in slots of its own
// memory, as DeviceBackend does. A wave's input and routes reach it before the host knows the routes; results come
// back once the first device has enqueued its own.
// Threads: single-thread. Lifetime: borrows the devices, the first one's queue, the store and the homes. Errors: those
// of DeviceCache::make; budget.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "runtime/experts/backends/device_backend.h"
#include "runtime/experts/executor.h"

namespace dspack::runtime {

/// Passes rows of a wave between the first device, which runs the layers, and a further one, which computes some
/// experts: input there, results back. They go through pinned host memory that kernels of both devices read and write
/// directly, so rows never wait for an expert's copy, and the host never blocks. Borrows both queues; owns memory of
/// the further device and of the host.
class RowExchange {
 public:
  /// A device and one of its queues.
  struct End {
    kernels::Device& device;
    kernels::Queue& queue;
  };
  [[nodiscard]] static Result<std::unique_ptr<RowExchange>> make(const End& first, const End& further,
                                                                 const ExecutorShape& shape);
  /// Memory of the further device.
  [[nodiscard]] static uint64_t device_bytes(const ExecutorShape& shape);
  /// Memory of the host.
  [[nodiscard]] static uint64_t host_bytes(const ExecutorShape& shape);

  /// Later work on the further queue finds these rows of the first device in `x()`.
  void send(const kernels::Rows& x);
  /// Later work on the first queue finds the rows `which` of `parts()` in the same rows of `to`.
  void bring(const kernels::Rows& to, std::span<const uint32_t> which);

  /// Later work on the first queue runs after all work given to the further one so far.
  void meet() { first_.wait(*further_.mark()); }

  /// The last rows sent, [rows, hidden].
  [[nodiscard]] kernels::Rows x() const { return own_rows(0, rows_); }
  /// The results for these rows, [rows * top_k, hidden].
  [[nodiscard]] kernels::Rows parts() const { return own_rows(shape_.wave_tokens, rows_ * shape_.top_k); }

 private:
  /// Host memory for rows that are passed together: one piece is written while the other one is read.
  struct StagingRegion {
    uint64_t offset_bytes = 0;
    std::shared_ptr<kernels::Event> read;  // last read of the piece; null: none
  };
  RowExchange(kernels::Queue& first, kernels::Queue& further, const ExecutorShape& shape)
      : first_(first), further_(further), shape_(shape) {}
  [[nodiscard]] kernels::Rows own_rows(uint64_t first, uint32_t rows) const;
  [[nodiscard]] kernels::Rows rows_of_piece(const StagingRegion& piece, uint32_t rows) const;
  /// The next piece; makes `writer` wait until it has been read.
  [[nodiscard]] StagingRegion& next_piece(kernels::Queue& writer);

  kernels::Queue& first_;
  kernels::Queue& further_;
  ExecutorShape shape_;
  uint32_t rows_ = 0;
  std::unique_ptr<kernels::Buffer> own_;     // further device's memory
  std::unique_ptr<kernels::Buffer> pinned_;  // host memory
  std::array<StagingRegion, 2> pieces_;
  size_t turn_ = 0;
};

class FurtherDevice final : public ExpertBackend {
 public:
  /// `options`: for its own slots.
  [[nodiscard]] static Result<std::unique_ptr<FurtherDevice>> make(
      const RowExchange::End& first, kernels::Device& device, const DeviceBackend::Share& share,
      const format::Checkpoint& checkpoint, ExpertStore& store, const ExecutorShape& shape,
      const DeviceCacheOptions& options, const MissOptions& miss);
  /// Memory needed beside slots: of the device, and of the host.
  [[nodiscard]] static uint64_t scratch_bytes_for(const kernels::Device& device, const ExecutorShape& shape);
  [[nodiscard]] static uint64_t host_bytes_for(const ExecutorShape& shape) { return RowExchange::host_bytes(shape); }
  ~FurtherDevice() override;
  FurtherDevice(const FurtherDevice&) = delete;
  FurtherDevice& operator=(const FurtherDevice&) = delete;

  void begin_pass(const ExpertPass& pass) override;
  void accept_drafts(uint32_t rows) override { inner_->accept_drafts(rows); }
  void before_routes(const kernels::Rows& x) override { exchange_->send(x); }
  void compute_held(const ExpertWave& wave, const RouteIds& ids) override;
  void begin_wave(const ExpertWave& wave, std::vector<size_t>& missing) override;
  [[nodiscard]] bool may_take(const ExpertWave& wave, size_t group) const override {
    return inner_->may_take(wave, group);
  }
  [[nodiscard]] Eta eta(const ExpertWave& wave, size_t group) override { return inner_->eta(wave, group); }
  void take(const ExpertWave& wave, size_t group, ExpertLease lease) override;
  void enqueue_taken(const ExpertWave& wave) override;
  void end_wave(const ExpertWave& wave) override;
  void offer(const ExpertWave& wave, Computed computed) override { inner_->offer(wave, std::move(computed)); }
  bool release_oldest() override { return inner_->release_oldest(); }
  [[nodiscard]] bool keep(LayerId layer, const ExpertDemand& demand, ExpertLease& lease) override {
    return inner_->keep(layer, demand, lease);
  }
  [[nodiscard]] bool holds(ExpertKey key) const override { return inner_->holds(key); }
  [[nodiscard]] std::vector<ExpertKey> held() const override { return inner_->held(); }
  [[nodiscard]] bool wants_forecast() const override { return inner_->wants_forecast(); }
  void expect(LayerId layer, std::span<const ExpertId> experts) override { inner_->expect(layer, experts); }
  bool advance() override { return inner_->advance(); }
  [[nodiscard]] std::optional<MissCounts> miss_counts() const override { return inner_->miss_counts(); }
  void add_to(ExpertStoreStats& stats) const override { inner_->add_to(stats); }

 private:
  FurtherDevice() = default;
  void begin_course(Phase phase);
  /// The wave with this device's rows and timeline.
  [[nodiscard]] ExpertWave seen(const ExpertWave& wave);

  std::unique_ptr<kernels::Queue> queue_;
  std::unique_ptr<kernels::Buffer> scratch_;
  std::unique_ptr<RowExchange> exchange_;
  std::unique_ptr<DeviceCache> cache_;
  std::unique_ptr<DeviceBackend> inner_;
  LayerCourse course_;            // the present wave, by this device's clock
  std::vector<size_t> computed_;  // the wave's groups that it computes
  bool has_held_ = false;         // it has selected experts itself
};

}  // namespace dspack::runtime
