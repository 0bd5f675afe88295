#include "runtime/experts/backends/further_device.h"

#include <algorithm>
#include <iterator>

#include "format/base/check.h"
#include "runtime/weights/scratch.h"

namespace dspack::runtime {
namespace {

// The most rows of a piece: all results of 32 tokens that go to eight experts. V3: 7.3 MB, 290 us at 25 GB/s, compared
// to which a launch is cheap.
constexpr uint32_t kMaxPieceRows = 256;

uint64_t row_bytes(const ExecutorShape& shape) {
  return uint64_t{shape.hidden} * sizeof(float);
}

uint32_t piece_rows(const ExecutorShape& shape) {
  return static_cast<uint32_t>(std::min<uint64_t>(kMaxPieceRows, uint64_t{shape.wave_tokens} * shape.top_k));
}

uint64_t kernel_scratch(const kernels::Device& device, const ExecutorShape& shape) {
  return device.experts_scratch_bytes({.hidden = shape.hidden,
                                       .inner = shape.expert_inner,
                                       .experts = shape.experts,
                                       .top_k = shape.top_k,
                                       .rows = shape.wave_tokens,
                                       .parts_only = true});
}

}  // namespace

Result<std::unique_ptr<RowExchange>> RowExchange::make(const End& first, const End& further,
                                                       const ExecutorShape& shape) {
  std::unique_ptr<RowExchange> made(new RowExchange(first.queue, further.queue, shape));
  TRY_ASSIGN(made->own_, further.device.allocate(device_bytes(shape)));
  TRY_ASSIGN(made->pinned_, first.device.allocate_host(host_bytes(shape)));
  made->pieces_[1].offset_bytes = row_bytes(shape) * piece_rows(shape);
  return made;
}

uint64_t RowExchange::device_bytes(const ExecutorShape& shape) {
  return row_bytes(shape) * shape.wave_tokens * (1 + uint64_t{shape.top_k});
}

uint64_t RowExchange::host_bytes(const ExecutorShape& shape) {
  return 2 * row_bytes(shape) * piece_rows(shape);
}

kernels::Rows RowExchange::own_rows(uint64_t first, uint32_t rows) const {
  return {.data = {.buffer = own_.get(), .offset_bytes = first * row_bytes(shape_)},
          .rows = rows,
          .cols = shape_.hidden,
          .stride = shape_.hidden};
}

kernels::Rows RowExchange::rows_of_piece(const StagingRegion& piece, uint32_t rows) const {
  return {.data = {.buffer = pinned_.get(), .offset_bytes = piece.offset_bytes},
          .rows = rows,
          .cols = shape_.hidden,
          .stride = shape_.hidden};
}

RowExchange::StagingRegion& RowExchange::next_piece(kernels::Queue& writer) {
  StagingRegion& piece = pieces_[turn_++ % pieces_.size()];
  if (piece.read != nullptr) writer.wait(*piece.read);
  return piece;
}

void RowExchange::send(const kernels::Rows& x) {
  DSPACK_CHECK(x.rows <= shape_.wave_tokens && x.stride == x.cols && x.cols == shape_.hidden,
               "an input of another shape");
  rows_ = x.rows;
  const uint32_t most = piece_rows(shape_);
  for (uint32_t row = 0; row < x.rows; row += most) {
    const uint32_t count = std::min(most, x.rows - row);
    StagingRegion& piece = next_piece(first_);
    const kernels::Rows passing = rows_of_piece(piece, count);
    first_.copy(passing.data, rows_of(x, row, count).data, row_bytes(shape_) * count);
    further_.wait(*first_.mark());
    further_.copy(own_rows(row, count).data, passing.data, row_bytes(shape_) * count);
    piece.read = further_.mark();
  }
}

void RowExchange::bring(const kernels::Rows& to, std::span<const uint32_t> which) {
  const size_t most = piece_rows(shape_);
  for (size_t done = 0; done < which.size(); done += most) {
    const auto some = which.subspan(done, std::min(most, which.size() - done));
    StagingRegion& piece = next_piece(further_);
    const kernels::Rows passing = rows_of_piece(piece, static_cast<uint32_t>(some.size()));
    further_.gather_rows(passing, parts(), some);
    meet();
    first_.scatter_rows(to, passing, some);
    piece.read = first_.mark();
  }
}

Result<std::unique_ptr<FurtherDevice>> FurtherDevice::make(const RowExchange::End& first, kernels::Device& device,
                                                           const DeviceBackend::Share& share,
                                                           const format::Checkpoint& checkpoint, ExpertStore& store,
                                                           const ExecutorShape& shape,
                                                           const DeviceCacheOptions& options, const MissOptions& miss) {
  std::unique_ptr<FurtherDevice> made(new FurtherDevice);
  made->queue_ = device.make_queue();
  TRY_ASSIGN(made->scratch_, device.allocate(kernel_scratch(device, shape)));
  TRY_ASSIGN(made->exchange_, RowExchange::make(first, {.device = device, .queue = *made->queue_}, shape));
  TRY_ASSIGN(made->cache_, DeviceCache::make(device, checkpoint, store, options));
  made->inner_ = std::make_unique<DeviceBackend>(
      *made->queue_, kernels::Slice{.buffer = made->scratch_.get(), .offset_bytes = 0}, *made->cache_, miss, share);
  return made;
}

// Reads of the exchange on the first queue have run: this object's owner has synchronised that queue.
FurtherDevice::~FurtherDevice() {
  queue_->synchronize();
}

uint64_t FurtherDevice::scratch_bytes_for(const kernels::Device& device, const ExecutorShape& shape) {
  return kernel_scratch(device, shape) + RowExchange::device_bytes(shape);
}

ExpertWave FurtherDevice::seen(const ExpertWave& wave) {
  ExpertWave own = wave;
  own.x = exchange_->x();
  own.parts = exchange_->parts();
  own.course = &course_;
  return own;
}

// Waits only after a failed pass: otherwise the first device has ended the previous pass, and so has this one.
void FurtherDevice::begin_pass(const ExpertPass& pass) {
  queue_->synchronize();
  inner_->begin_pass(pass);
}

void FurtherDevice::begin_course(Phase phase) {
  computed_.clear();
  course_ = {.phase = phase};
  course_.all.begin = queue_->mark();
}

void FurtherDevice::compute_held(const ExpertWave& wave, const RouteIds& ids) {
  queue_->wait(*wave.course->all.begin);
  begin_course(wave.phase);
  inner_->compute_held(seen(wave), ids);
}

void FurtherDevice::begin_wave(const ExpertWave& wave, std::vector<size_t>& missing) {
  has_held_ = inner_->has_held();
  if (!has_held_) begin_course(wave.phase);
  if (wave.tracer != nullptr) return;  // traced experts are computed on the first device
  const std::vector<size_t> before = missing;
  inner_->begin_wave(seen(wave), missing);
  std::ranges::set_difference(before, missing, std::back_inserter(computed_));
}

void FurtherDevice::take(const ExpertWave& wave, size_t group, ExpertLease lease) {
  wave.course->last_on_host = 0;
  computed_.push_back(group);
  inner_->take(seen(wave), group, std::move(lease));
}

void FurtherDevice::enqueue_taken(const ExpertWave& wave) {
  inner_->enqueue_taken(seen(wave));
}

void FurtherDevice::end_wave(const ExpertWave& wave) {
  if (computed_.empty()) {
    if (has_held_) exchange_->meet();
    return;
  }
  std::vector<uint32_t> which;
  for (const size_t group : computed_)
    which.insert(which.end(), wave.groups[group].parts.begin(), wave.groups[group].parts.end());
  course_.all.end = queue_->mark();  // reached before the first queue has the results
  exchange_->bring(wave.parts, which);
  wave.course->others.push_back(std::move(course_));
}

}  // namespace dspack::runtime
