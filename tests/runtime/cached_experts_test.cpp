// An expert store above a cache on disk whose files were spoilt after they were written: whatever was read on the
// chance, given up or found wrong before, what is handed out has its digests.
#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "runtime/access/place.h"
#include "runtime/budget/read_trial.h"
#include "runtime/experts/policy/lru.h"
#include "runtime/experts/streamed_store.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::runtime::cached_experts_test {
namespace {

constexpr LayerId kLayer{1};
constexpr ExpertShape kShape{.hidden = 64, .expert_inner = 64, .quantization = {}};

class Notes final : public format::Progress {
 public:
  explicit Notes(std::vector<std::string>& texts) : texts_(texts) {}
  using format::Progress::note;
  using format::Progress::started;
  void started(const format::Work&) override {}
  void advanced(uint64_t) override {}
  void item_done() override {}
  void note(format::NoteKind, std::string_view text) override { texts_.emplace_back(text); }
  void finished() override {}

 private:
  std::vector<std::string>& texts_;
};

/// Holds one read back until the test lets it go.
class GatedTier final : public Tier {
 public:
  explicit GatedTier(Tier& inner) : inner_(inner) {}

  void hold_next() {
    const std::lock_guard lock(mutex_);
    holds_next_ = true;
  }
  void wait_until_held() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_held_; });
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    is_held_ = false;
    changed_.notify_all();
  }

  [[nodiscard]] const format::Checkpoint& checkpoint() const override { return inner_.checkpoint(); }
  Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into, const std::stop_token& stop) override {
    {
      std::unique_lock lock(mutex_);
      if (holds_next_) {
        holds_next_ = false;
        is_held_ = true;
        changed_.notify_all();
        changed_.wait(lock, [this] { return !is_held_; });
      }
    }
    return inner_.read(file, offset, into, stop);
  }
  [[nodiscard]] Medium medium_of(ExpertKey expert) const override { return inner_.medium_of(expert); }
  [[nodiscard]] bool must_verify(ExpertKey expert) const override { return inner_.must_verify(expert); }
  [[nodiscard]] std::optional<format::Digest> digest_of(const format::TensorEntry& tensor) const override {
    return inner_.digest_of(tensor);
  }
  void trust(ExpertKey expert) override { inner_.trust(expert); }
  [[nodiscard]] bool distrust(ExpertKey expert) override { return inner_.distrust(expert); }
  [[nodiscard]] Result<void> keep(ExpertKey expert, std::span<const TensorBytes> tensors,
                                  const std::stop_token& stop) override {
    return inner_.keep(expert, tensors, stop);
  }
  [[nodiscard]] uint64_t block_bytes(uint32_t file) const override { return inner_.block_bytes(file); }
  [[nodiscard]] unsigned depth() const override { return inner_.depth(); }

 private:
  Tier& inner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool holds_next_ = false;  // guarded by mutex_, as all that follows
  bool is_held_ = false;
};

/// One run over the cache.
struct Run {
  CheckpointPlace place;
  format::Checkpoint catalogue;
  std::unique_ptr<Tier> tier;
  std::unique_ptr<GatedTier> gate;
  std::unique_ptr<StreamedStore> store;

  void expect(const std::vector<uint32_t>& experts) const {
    std::vector<ExpertId> ids;
    for (const uint32_t expert : experts)
      ids.emplace_back(expert);
    store->expect(kLayer, ids);
  }
  [[nodiscard]] std::unique_ptr<ExpertRequest> request(uint32_t expert) const {
    auto made = store->request(kLayer, {{.expert = ExpertId(expert)}});
    REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
    return std::move(*made);
  }
  /// Waits until what was read on the chance has left its slot again.
  void wait_until_empty() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (store->stats().resident_experts != 0) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      std::this_thread::yield();
    }
  }
};

struct Lab {
  Lab() {
    original.write(source);
    const Run run = begin();
    for (const auto& [key, tensors] : run.catalogue.experts())
      if (key.layer == kLayer) take(run, key.expert.value);
  }

  Run begin() {
    Run run;
    auto opened = open_distant_place(
        {.origin = format::open_repository(source.path().string(), {}, format::posix_file_system()).value(),
         .counters = std::make_shared<format::TransferCounters>(),
         .progress = std::make_unique<Notes>(notes),
         .cache_root = cache.path(),
         .tier = {.connections = 2}},
        format::posix_file_system(), {});
    REQUIRE_MESSAGE(opened, (opened ? "" : opened.error().message));
    run.place = std::move(*opened);
    run.catalogue = format::Checkpoint::open(*run.place.files, 1, {}).value();
    run.tier = run.place.open_tier(run.catalogue, {}, {}, {}).value().tier;
    run.gate = std::make_unique<GatedTier>(*run.tier);
    run.store = StreamedStore::make(*device, *run.gate,
                                    {.shape = kShape,
                                     .slots = {},
                                     .policy = [] { return std::make_unique<LruPolicy>(); },
                                     .prefetch = PrefetchMode::on})
                    .value();
    run.store->begin_pass({});
    return run;
  }

  void take(const Run& run, uint32_t expert) const { take(*run.request(expert), expert); }
  /// Takes the expert and compares its matrices with those of the source.
  void take(ExpertRequest& request, uint32_t expert) const {
    const auto lease = request.next({});
    REQUIRE_MESSAGE(lease, (lease ? "" : lease.error().message));
    const std::string prefix = "model.layers.1.mlp.experts." + std::to_string(expert) + ".";
    const auto check = [&](const Linear& linear, const std::string& part) {
      const std::string& bytes = weights.at(prefix + part + ".weight");
      const kernels::Slice codes = linear.weight().planes[kernels::kCodes];
      const auto memory = kernels::host_bytes(*codes.buffer).subspan(codes.offset_bytes);
      CHECK_MESSAGE(std::memcmp(memory.data(), bytes.data(), bytes.size()) == 0, part, " has other bytes");
    };
    check(lease->weights().gate, "gate_proj");
    check(lease->weights().up, "up_proj");
    check(lease->weights().down, "down_proj");
  }

  /// A flipped bit in the file of every expert of the layer, in the last matrix or scale.
  void spoil() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cache.path())) {
      if (entry.path().string().find("layers/001/experts/") == std::string::npos) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(4096 + 64 * 64 / 2);
      const int was = file.get();
      file.seekp(4096 + 64 * 64 / 2);
      file.put(static_cast<char>(was ^ 1));
    }
  }
  [[nodiscard]] static std::map<std::string, std::string> weights_of(test::SmallCheckpoint& checkpoint) {
    std::map<std::string, std::string> weights;
    for (size_t shard = 0; shard < 3; ++shard) {
      for (const test::RawTensor& tensor : checkpoint.shard(shard))
        weights[tensor.name] = tensor.bytes;
    }
    return weights;
  }

  test::TempFolder source;
  test::TempFolder cache;
  test::SmallCheckpoint original;
  std::map<std::string, std::string> weights = weights_of(original);
  std::vector<std::string> notes;
  std::unique_ptr<kernels::Device> device = std::move(*kernels::make_cpu_device({.threads = 1, .instruction_set = {}}));
};

TEST_CASE("cached experts: a spoilt one is fetched again when it is wanted") {
  Lab lab;
  lab.spoil();
  const Run run = lab.begin();
  lab.take(run, 2);
  CHECK(run.tier->traffic()->refetches == 1);
  REQUIRE(lab.notes.size() == 1);
  CHECK(lab.notes[0] == "layer 1, expert 2: it is damaged in the cache and fetched again");
}

TEST_CASE("cached experts: a spoilt one that was read on the chance is not used, and leaves the cache at once") {
  Lab lab;
  lab.spoil();
  const Run run = lab.begin();
  const ExpertKey key{kLayer, ExpertId(2)};
  REQUIRE(run.tier->medium_of(key) == Medium::disk);
  run.expect({2});
  run.wait_until_empty();
  CHECK(run.tier->medium_of(key) == Medium::network);
  CHECK(lab.notes.size() == 1);
  lab.take(run, 2);
  CHECK(run.store->stats().misses() == 1);
}

TEST_CASE("cached experts: a prefetch that was given up vouches for nothing") {
  Lab lab;
  lab.spoil();
  const Run run = lab.begin();
  run.gate->hold_next();
  run.expect({1, 2});  // one thread prefetches: 2 waits for 1
  run.gate->wait_until_held();
  {
    const auto other = run.request(0);
    run.gate->let_go();
    lab.take(*other, 0);
  }
  CHECK(run.tier->must_verify({kLayer, ExpertId(2)}));
  lab.take(run, 2);
}

TEST_CASE("cached experts: measuring the disk vouches for nothing either, unless the digests were right") {
  Lab lab;
  for (const bool is_spoilt : {false, true}) {
    CAPTURE(is_spoilt);
    if (is_spoilt) lab.spoil();
    const Run run = lab.begin();
    const std::vector<LayerId> layers = {kLayer};
    const auto times = time_reads(*lab.device, *run.gate, kShape, layers, 1, 0, {});
    CHECK(times.has_value() == !is_spoilt);
    int unchecked = 0;
    for (uint32_t expert = 0; expert < 3; ++expert) {
      unchecked += run.tier->must_verify({kLayer, ExpertId(expert)}) ? 0 : 1;
      lab.take(run, expert);
    }
    CHECK((unchecked > 0) == !is_spoilt);
  }
}

TEST_CASE("cached experts: asking whether one must be checked changes nothing") {
  Lab lab;
  const Run run = lab.begin();
  const ExpertKey key{kLayer, ExpertId(1)};
  for (int times = 0; times < 3; ++times)
    CHECK(run.tier->must_verify(key));
  lab.take(run, 1);
  for (int times = 0; times < 3; ++times)
    CHECK_FALSE(run.tier->must_verify(key));
}

}  // namespace
}  // namespace dspack::runtime::cached_experts_test
