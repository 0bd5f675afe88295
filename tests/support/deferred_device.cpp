#include "tests/support/deferred_device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "format/base/check.h"
#include "tests/support/deferred_memory.h"

namespace dspack::test {
namespace {

using kernels::Buffer;
using kernels::Event;
using kernels::ExpertMatrices;
using kernels::ExpertTable;
using kernels::HeadLinearArgs;
using kernels::LivePosition;
using kernels::Queue;
using kernels::Rows;
using kernels::SampleArgs;
using kernels::Slice;
using kernels::Step;
using kernels::Weight;

uint64_t extent(const Rows& rows) {
  return rows.rows == 0 ? 0 : (uint64_t{rows.rows - 1} * rows.stride + rows.cols) * sizeof(float);
}

/// Turns places of this device into places of the one below, and remembers whose they were.
class Translation {
 public:
  explicit Translation(const DeferredDevice& device) : device_(device) {}
  Slice operator()(Slice place) {
    if (place.empty()) return place;
    auto* buffer = dynamic_cast<DeferredBuffer*>(place.buffer);
    DSPACK_CHECK(buffer != nullptr && buffer->memory()->device == &device_, "a buffer of another device");
    uses.push_back(buffer->memory());
    return {.buffer = buffer->memory()->inner.get(), .offset_bytes = place.offset_bytes};
  }
  /// Of one that may be the host's.
  Slice any(Slice place) {
    auto* const buffer = dynamic_cast<DeferredHostBuffer*>(place.buffer);
    if (buffer == nullptr) return (*this)(place);
    uses.push_back(buffer->memory());
    return {.buffer = buffer->memory()->inner.get(), .offset_bytes = place.offset_bytes};
  }
  Rows any(Rows rows) {
    rows.data = any(rows.data);
    return rows;
  }
  Rows operator()(Rows rows) {
    rows.data = (*this)(rows.data);
    return rows;
  }
  Weight operator()(Weight weight) {
    for (Slice& plane : weight.planes)
      plane = (*this)(plane);
    return weight;
  }
  LivePosition operator()(LivePosition live) {
    live.value = (*this)(live.value);
    return live;
  }
  kernels::Choice operator()(kernels::Choice choice) {
    choice.ids = (*this)(choice.ids);
    choice.counts = (*this)(choice.counts);
    return choice;
  }

  Uses uses;

 private:
  const DeferredDevice& device_;
};

struct DeferredTable final : ExpertTable {
  [[nodiscard]] uint32_t size() const override { return inner->size(); }
  std::unique_ptr<ExpertTable> inner;
  Uses uses;
};

struct Operation {
  Uses uses;
  std::function<void(Queue&)> run;
};
using Operations = std::vector<Operation>;

class DeferredEvent final : public Event {
 public:
  DeferredEvent(const DeferredDevice& device, std::shared_ptr<DeferredCounts> counts,
                std::shared_ptr<StreamOrder> order, std::shared_ptr<StreamOrder::Event> event)
      : device_(&device), counts_(std::move(counts)), order_(std::move(order)), event_(std::move(event)) {}
  bool is_reached() override {
    if (!event_->is_reached) order_->run_some();
    return event_->is_reached;
  }
  void wait() override {
    ++counts_->synchronisations;
    counts_->held_at_wait = counts_->held;
    order_->run_until(*event_);
  }
  [[nodiscard]] double seconds_since(const Event& earlier) const override {
    DSPACK_CHECK(dynamic_cast<const DeferredEvent&>(earlier).device_ == device_, "times of two devices");
    const auto& other = *dynamic_cast<const DeferredEvent&>(earlier).event_;
    DSPACK_CHECK(event_->is_reached && other.is_reached, "the time of an event that is not reached");
    return std::chrono::duration<double>(event_->when - other.when).count();
  }
  [[nodiscard]] const std::shared_ptr<StreamOrder::Event>& event() const { return event_; }

 private:
  const DeferredDevice* device_;
  std::shared_ptr<DeferredCounts> counts_;
  std::shared_ptr<StreamOrder> order_;
  std::shared_ptr<StreamOrder::Event> event_;
};

struct DeferredStep final : Step {
  std::shared_ptr<Operations> operations = std::make_shared<Operations>();
};

class DeferredQueue final : public Queue {
 public:
  DeferredQueue(const DeferredDevice& device, std::unique_ptr<Queue> inner, std::shared_ptr<DeferredCounts> counts,
                std::shared_ptr<StreamOrder> order)
      : device_(device),
        inner_(std::move(inner)),
        counts_(std::move(counts)),
        order_(std::move(order)),
        stream_(order_->add_stream()) {}
  ~DeferredQueue() override { order_->remove_stream(stream_); }
  DeferredQueue(const DeferredQueue&) = delete;
  DeferredQueue& operator=(const DeferredQueue&) = delete;

  void upload(Slice to, std::span<const std::byte> from) override {
    check_not_recording();
    counts_->uploads.push_back({.bytes = from.size(), .under_way = counts_->uploaded_bytes - counts_->arrived_bytes});
    counts_->uploaded_bytes += from.size();
    Translation inner(device_);
    enqueue(inner,
            [to = inner(to), from, then = std::vector(from.begin(), from.end()), counts = counts_](Queue& queue) {
              DSPACK_CHECK(std::ranges::equal(from, then), "what is uploaded has changed before it was");
              queue.upload(to, from);
              counts->arrived_bytes += from.size();
            });
  }
  void download(std::span<std::byte> to, Slice from) override {
    check_not_recording();
    counts_->downloaded_bytes += to.size();
    std::ranges::fill(to, kPoison);
    Translation inner(device_);
    enqueue(inner, [to, from = inner(from)](Queue& queue) { queue.download(to, from); });
  }
  void copy(Slice to, Slice from, uint64_t bytes) override {
    const HostAccess read(from, bytes, HostAccess::Kind::read);
    const HostAccess written(to, bytes, HostAccess::Kind::write);
    if (read.is_of_host() || written.is_of_host()) check_not_recording();
    Translation inner(device_);
    enqueue(inner, [to = inner.any(to), from = inner.any(from), bytes, read, written](Queue& queue) {
      read.run();
      written.run();
      queue.copy(to, from, bytes);
    });
  }
  void synchronize() override {
    check_not_recording();
    ++counts_->synchronisations;
    counts_->held_at_wait = counts_->held;
    order_->run_all(stream_);
  }
  std::shared_ptr<Event> mark() override {
    check_not_recording();
    return std::make_shared<DeferredEvent>(device_, counts_, order_, order_->mark(stream_));
  }
  void wait(const Event& event) override {
    check_not_recording();
    order_->wait(stream_, dynamic_cast<const DeferredEvent&>(event).event());
  }

  void linear(const Weight& weight, const Rows& x, const Rows& y) override {
    Translation inner(device_);
    enqueue(inner, [weight = inner(weight), x = inner(x), y = inner(y)](Queue& queue) { queue.linear(weight, x, y); });
  }
  void head_linear_transposed(const HeadLinearArgs& args) override {
    Translation inner(device_);
    enqueue(inner, [args = heads(inner, args)](Queue& queue) { queue.head_linear_transposed(args); });
  }
  void head_linear(const HeadLinearArgs& args) override {
    Translation inner(device_);
    enqueue(inner, [args = heads(inner, args)](Queue& queue) { queue.head_linear(args); });
  }
  void rms_norm(const Rows& x, Slice gain, float epsilon, const Rows& y) override {
    Translation inner(device_);
    enqueue(inner, [x = inner(x), gain = inner(gain), epsilon, y = inner(y)](Queue& queue) {
      queue.rms_norm(x, gain, epsilon, y);
    });
  }
  void layer_norm(const Rows& x, Slice gain, Slice bias, float epsilon, const Rows& y) override {
    Translation inner(device_);
    enqueue(inner, [x = inner(x), gain = inner(gain), bias = inner(bias), epsilon, y = inner(y)](Queue& queue) {
      queue.layer_norm(x, gain, bias, epsilon, y);
    });
  }
  void choose(const kernels::ChooseArgs& args) override {
    Translation inner(device_);
    kernels::ChooseArgs below = args;
    below.queries = inner(args.queries);
    below.weights = inner(args.weights);
    below.keys = inner(args.keys);
    below.choice = inner(args.choice);
    below.live = inner(args.live);
    enqueue(inner, [below](Queue& queue) { queue.choose(below); });
  }
  void rope(const kernels::RopeArgs& args) override {
    Translation inner(device_);
    kernels::RopeArgs below = args;
    below.data = inner(args.data);
    below.cos_sin = inner(args.cos_sin);
    below.live = inner(args.live);
    enqueue(inner, [below](Queue& queue) { queue.rope(below); });
  }
  void mla_attend(const kernels::MlaAttendArgs& args) override {
    Translation inner(device_);
    kernels::MlaAttendArgs below = args;
    below.query_latent = inner(args.query_latent);
    below.query_rope = inner(args.query_rope);
    below.cache = inner(args.cache);
    below.out = inner(args.out);
    below.live = inner(args.live);
    below.choice = inner(args.choice);
    enqueue(inner, [below](Queue& queue) { queue.mla_attend(below); });
  }
  void store_in_ring(const kernels::StoreInRingArgs& args) override {
    Translation inner(device_);
    kernels::StoreInRingArgs below = args;
    below.rows = inner(args.rows);
    below.ring = inner(args.ring);
    below.live = inner(args.live);
    enqueue(inner, [below](Queue& queue) { queue.store_in_ring(below); });
  }
  void window_attend(const kernels::WindowAttendArgs& args) override {
    Translation inner(device_);
    kernels::WindowAttendArgs below = args;
    below.queries = inner(args.queries);
    below.ring = inner(args.ring);
    below.entries = inner(args.entries);
    below.choice = inner(args.choice);
    below.sinks = inner(args.sinks);
    below.out = inner(args.out);
    below.live = inner(args.live);
    enqueue(inner, [below](Queue& queue) { queue.window_attend(below); });
  }
  void compress(const kernels::CompressArgs& args) override {
    Translation inner(device_);
    kernels::CompressArgs below = args;
    below.values = inner(args.values);
    below.gates = inner(args.gates);
    for (Slice kernels::CompressArgs::*place :
         {&kernels::CompressArgs::ape, &kernels::CompressArgs::state, &kernels::CompressArgs::entries,
          &kernels::CompressArgs::gain, &kernels::CompressArgs::cos_sin})
      below.*place = inner(args.*place);
    below.live = inner(args.live);
    enqueue(inner, [below](Queue& queue) { queue.compress(below); });
  }
  void read_streams(const kernels::ReadStreamsArgs& args) override {
    Translation inner(device_);
    kernels::ReadStreamsArgs below = args;
    below.streams = inner(args.streams);
    below.logits = inner(args.logits);
    below.base = inner(args.base);
    below.scale = inner(args.scale);
    below.y = inner(args.y);
    enqueue(inner, [below](Queue& queue) { queue.read_streams(below); });
  }
  void join_streams(const kernels::JoinStreamsArgs& args) override {
    Translation inner(device_);
    kernels::JoinStreamsArgs below = args;
    below.streams = inner(args.streams);
    below.mix = inner(args.mix);
    below.y = inner(args.y);
    enqueue(inner, [below](Queue& queue) { queue.join_streams(below); });
  }
  void silu_multiply(const Rows& gate, const Rows& up, float limit) override {
    Translation inner(device_);
    enqueue(inner, [gate = inner(gate), up = inner(up), limit](Queue& queue) { queue.silu_multiply(gate, up, limit); });
  }
  void add(const Rows& y, const Rows& x) override {
    Translation inner(device_);
    enqueue(inner, [y = inner(y), x = inner(x)](Queue& queue) { queue.add(y, x); });
  }
  void route(const kernels::RouterArgs& args) override {
    Translation inner(device_);
    kernels::RouterArgs below = args;
    below.logits = inner(args.logits);
    below.bias = inner(args.bias);
    below.ids = inner(args.ids);
    below.weights = inner(args.weights);
    below.by_token.experts = inner(args.by_token.experts);
    below.by_token.tokens = inner(args.by_token.tokens);
    enqueue(inner, [below](Queue& queue) { queue.route(below); });
  }
  void run_experts(const kernels::ExpertsArgs& args) override {
    const auto* table = dynamic_cast<const DeferredTable*>(args.table);
    DSPACK_CHECK(table != nullptr, "a table of another device");
    Translation inner(device_);
    kernels::ExpertsArgs below = args;
    below.table = table->inner.get();
    below.x = inner(args.x);
    below.ids = inner(args.ids);
    below.weights = inner(args.weights);
    below.scratch = inner(args.scratch);
    below.y = inner(args.y);
    inner.uses.insert(inner.uses.end(), table->uses.begin(), table->uses.end());
    enqueue(inner, [below](Queue& queue) { queue.run_experts(below); });
  }
  void run_expert_parts(const kernels::ExpertPartsArgs& args) override {
    ++counts_->parts;
    const auto* table = dynamic_cast<const DeferredTable*>(args.table);
    DSPACK_CHECK(table != nullptr, "a table of another device");
    Translation inner(device_);
    kernels::ExpertPartsArgs below = args;
    below.table = table->inner.get();
    below.x = inner(args.x);
    below.scratch = inner(args.scratch);
    below.parts = inner(args.parts);
    inner.uses.insert(inner.uses.end(), table->uses.begin(), table->uses.end());
    std::vector<std::pair<uint32_t, std::vector<uint32_t>>> groups;
    for (const kernels::ExpertGroup& group : args.groups)
      groups.emplace_back(group.entry, std::vector(group.parts.begin(), group.parts.end()));
    enqueue(inner, [below, groups = std::move(groups)](Queue& queue) mutable {
      std::vector<kernels::ExpertGroup> mine;
      for (const auto& [entry, parts] : groups)
        mine.push_back({.entry = entry, .parts = parts});
      below.groups = mine;
      queue.run_expert_parts(below);
    });
  }
  [[nodiscard]] bool run_held_experts(const kernels::HeldExpertsArgs& args) override {
    ++counts_->held;
    const auto* table = dynamic_cast<const DeferredTable*>(args.table);
    DSPACK_CHECK(table != nullptr, "a table of another device");
    Translation inner(device_);
    kernels::ExpertPartsArgs below{.table = table->inner.get(),
                                   .x = inner(args.x),
                                   .groups = {},
                                   .top_k = args.top_k,
                                   .scratch = inner(args.scratch),
                                   .parts = inner(args.parts)};
    inner.uses.insert(inner.uses.end(), table->uses.begin(), table->uses.end());
    std::vector<uint32_t> entries(args.entries.begin(), args.entries.end());
    const HostAccess read(args.ids, args.parts.rows * sizeof(uint32_t), HostAccess::Kind::read);
    enqueue(inner, [below, ids = inner.any(args.ids), read, entries = std::move(entries)](Queue& queue) mutable {
      read.run();
      std::vector<std::byte> bytes(below.parts.rows * sizeof(uint32_t));
      queue.download(bytes, ids);
      queue.synchronize();
      for (uint32_t part = 0; part < below.parts.rows; ++part) {
        uint32_t expert = 0;
        std::memcpy(&expert, bytes.data() + part * sizeof(uint32_t), sizeof(uint32_t));
        if (entries[expert] == kernels::kNoEntry) continue;
        const kernels::ExpertGroup group{.entry = entries[expert], .parts = {&part, 1}};
        below.groups = {&group, 1};
        queue.run_expert_parts(below);
      }
    });
    return true;
  }
  void store_rows(Slice to, Dtype dtype, const Rows& from, const LivePosition& live) override {
    Translation inner(device_);
    enqueue(inner, [to = inner(to), dtype, from = inner(from), live = inner(live)](Queue& queue) {
      queue.store_rows(to, dtype, from, live);
    });
  }
  void store_latents(Slice to, kernels::LatentShape shape, const Rows& from, const LivePosition& live) override {
    Translation inner(device_);
    enqueue(inner, [to = inner(to), shape, from = inner(from), live = inner(live)](Queue& queue) {
      queue.store_latents(to, shape, from, live);
    });
  }
  void store_fp8_rows(Slice codes, Slice scales, const Rows& from, const LivePosition& live) override {
    Translation inner(device_);
    enqueue(inner, [codes = inner(codes), scales = inner(scales), from = inner(from),
                    live = inner(live)](Queue& queue) { queue.store_fp8_rows(codes, scales, from, live); });
  }
  void gather_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) override {
    move_rows(to, from, rows, &Queue::gather_rows);
  }
  void scatter_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows) override {
    move_rows(to, from, rows, &Queue::scatter_rows);
  }
  void combine(const Rows& y, const Rows& parts, Slice weights, uint32_t top_k) override {
    Translation inner(device_);
    enqueue(inner, [y = inner(y), parts = inner(parts), weights = inner(weights), top_k](Queue& queue) {
      queue.combine(y, parts, weights, top_k);
    });
  }
  void argmax(const Rows& x, Slice ids) override {
    Translation inner(device_);
    enqueue(inner, [x = inner(x), ids = inner(ids)](Queue& queue) { queue.argmax(x, ids); });
  }
  void sample(const SampleArgs& args) override {
    Translation inner(device_);
    SampleArgs mine = args;
    mine.logits = inner(args.logits);
    mine.settings = inner(args.settings);
    mine.keys = inner(args.keys);
    mine.ids = inner(args.ids);
    enqueue(inner, [mine](Queue& queue) { queue.sample(mine); });
  }

  std::unique_ptr<Step> record(const std::function<void()>& operations) override {
    check_not_recording();
    ++counts_->recordings;
    auto step = std::make_unique<DeferredStep>();
    recording_ = step->operations.get();
    operations();
    recording_ = nullptr;
    return step;
  }
  void run(Step& step) override {
    check_not_recording();
    auto* mine = dynamic_cast<DeferredStep*>(&step);
    DSPACK_CHECK(mine != nullptr, "a step of another device");
    ++counts_->steps;
    order_->add(stream_, [this, operations = mine->operations] {
      for (const Operation& operation : *operations)
        run_now(operation);
    });
  }

 private:
  void move_rows(const Rows& to, const Rows& from, std::span<const uint32_t> rows,
                 void (Queue::*move)(const Rows&, const Rows&, std::span<const uint32_t>)) {
    const HostAccess read(from.data, extent(from), HostAccess::Kind::read);
    const HostAccess written(to.data, extent(to), HostAccess::Kind::write);
    if (read.is_of_host() || written.is_of_host()) check_not_recording();
    Translation inner(device_);
    enqueue(inner, [to = inner.any(to), from = inner.any(from), read, written, move,
                    index = std::vector(rows.begin(), rows.end())](Queue& queue) {
      read.run();
      written.run();
      (queue.*move)(to, from, index);
    });
  }
  static HeadLinearArgs heads(Translation& inner, HeadLinearArgs args) {
    args.weight = inner(args.weight);
    args.x = inner(args.x);
    args.y = inner(args.y);
    return args;
  }
  void check_not_recording() const {
    DSPACK_CHECK(recording_ == nullptr, "a recording uploads, downloads, waits or runs a step");
  }
  void enqueue(Translation& inner, std::function<void(Queue&)> run) {
    Operation operation{std::move(inner.uses), std::move(run)};
    if (recording_ != nullptr) return recording_->push_back(std::move(operation));
    ++counts_->operations;
    order_->add(stream_, [this, operation = std::move(operation)] { run_now(operation); });
  }
  void run_now(const Operation& operation) {
    for (const auto& memory : operation.uses)
      DSPACK_CHECK(!memory->is_gone, "a buffer has gone before an operation on it has run");
    operation.run(*inner_);
  }

  const DeferredDevice& device_;
  std::unique_ptr<Queue> inner_;
  std::shared_ptr<DeferredCounts> counts_;
  std::shared_ptr<StreamOrder> order_;
  StreamOrder::StreamId stream_;
  Operations* recording_ = nullptr;
};

}  // namespace

DeferredDevice::DeferredDevice(std::unique_ptr<kernels::Device> inner, uint64_t most_bytes, uint64_t seed)
    : inner_(std::move(inner)), bytes_left_(most_bytes), order_(std::make_shared<StreamOrder>(seed)) {
  DSPACK_CHECK(inner_->is_host(), "made of another device than a host's");
}

DeferredDevice::DeferredDevice(std::unique_ptr<kernels::Device> inner, const DeferredDevice& beside)
    : inner_(std::move(inner)), bytes_left_(UINT64_MAX), order_(beside.order_) {}

Result<std::unique_ptr<Buffer>> DeferredDevice::allocate(uint64_t bytes) {
  if (bytes > bytes_left_) return Error{ErrorKind::budget, "the device's memory is full"};
  bytes_left_ -= bytes;
  allocated_bytes_ += bytes;
  TRY_ASSIGN(auto inner, inner_->allocate(bytes));
  return std::unique_ptr<Buffer>(std::make_unique<DeferredBuffer>(std::move(inner), *this));
}

Result<std::unique_ptr<Buffer>> DeferredDevice::allocate_host(uint64_t bytes) {
  uint64_t left = host_bytes_left_;
  do {
    if (bytes > left) return Error{ErrorKind::budget, "no more of the host's memory can be pinned"};
  } while (!host_bytes_left_.compare_exchange_weak(left, left - bytes));
  TRY_ASSIGN(auto inner, inner_->allocate(bytes));
  return std::unique_ptr<Buffer>(std::make_unique<DeferredHostBuffer>(std::move(inner)));
}

std::unique_ptr<Queue> DeferredDevice::make_queue() {
  return std::make_unique<DeferredQueue>(*this, inner_->make_queue(), counts_, order_);
}

Result<std::unique_ptr<ExpertTable>> DeferredDevice::make_expert_table(std::span<const ExpertMatrices> experts) {
  Translation inner(*this);
  std::vector<ExpertMatrices> below;
  for (const ExpertMatrices& expert : experts)
    below.push_back(
        {.gate = inner(expert.gate), .up = inner(expert.up), .down = inner(expert.down), .limit = expert.limit});
  auto table = std::make_unique<DeferredTable>();
  TRY_ASSIGN(table->inner, inner_->make_expert_table(below));
  table->uses = std::move(inner.uses);
  return std::unique_ptr<ExpertTable>(std::move(table));
}

uint64_t DeferredDevice::experts_scratch_bytes(const kernels::ExpertsShape& shape) const {
  return inner_->experts_scratch_bytes(shape);
}

}  // namespace dspack::test
