// How an expert is read: in one piece through the page cache, in several at once where a disk or a network wants that;
// every byte once.
#include "runtime/experts/expert_load.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <future>
#include <mutex>
#include <vector>

#include "format/base/page_buffer.h"
#include "format/base/page_range.h"
#include "format/base/size.h"
#include "format/json.h"
#include "runtime/access/folder_tier.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/temp_folder.h"

namespace dspack::expert_load_test {

using namespace dspack;
using format::ReadMode;
using runtime::FolderTier;

namespace {

constexpr ExpertKey kExpert{LayerId(0), ExpertId(0)};
constexpr uint32_t kSide = 1024;
constexpr uint64_t kMatrixBytes = uint64_t{kSide} * kSide * 2;

/// One expert of three BF16 matrices, the last of which may lie in another file.
class OneExpert {
 public:
  explicit OneExpert(bool in_two_files) {
    std::vector<std::vector<test::RawTensor>> files(2);
    format::Json map = format::Json::object();
    unsigned seed = 0;
    for (const std::string part : {"gate_proj", "up_proj", "down_proj"}) {
      const size_t file = in_two_files && part == "down_proj" ? 1 : 0;
      const std::string name = "model.layers.0.mlp.experts.0." + part + ".weight";
      files[file].push_back({name, "BF16", {kSide, kSide}, test::pattern(kMatrixBytes, ++seed)});
      map[name] = name_of(file);
      bytes += files[file].back().bytes;
    }
    for (size_t file = 0; file < files.size(); ++file)
      folder_.write(name_of(file), test::safetensors_file(files[file]));
    folder_.write("model.safetensors.index.json", format::Json({{"weight_map", map}}).dump());
    repository = format::open_repository(folder_.path().string(), {}, format::posix_file_system()).value();
    checkpoint.emplace(format::Checkpoint::open(*repository, 1, {}).value());
  }

  std::string bytes;  // gate, up, down
  std::unique_ptr<format::Repository> repository;
  std::optional<format::Checkpoint> checkpoint;

 private:
  static std::string name_of(size_t file) { return "part-" + std::to_string(file) + ".safetensors"; }
  test::TempFolder folder_;
};

/// Remembers what is read from the storage behind it.
class WatchedTier final : public runtime::Tier {
 public:
  explicit WatchedTier(runtime::Tier& inner) : inner_(inner) {}

  struct Read {
    uint32_t file = 0;
    ByteRange range;
  };
  /// By file and offset.
  [[nodiscard]] std::vector<Read> reads() {
    const std::lock_guard lock(mutex_);
    std::ranges::sort(reads_, {}, [](const Read& read) { return std::pair(read.file, read.range.begin); });
    return reads_;
  }

  [[nodiscard]] const format::Checkpoint& checkpoint() const override { return inner_.checkpoint(); }
  Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into, const std::stop_token& stop) override {
    {
      const std::lock_guard lock(mutex_);
      reads_.push_back({.file = file, .range = {offset, offset + into.size()}});
    }
    return inner_.read(file, offset, into, stop);
  }
  [[nodiscard]] runtime::Medium medium_of(ExpertKey expert) const override { return inner_.medium_of(expert); }
  [[nodiscard]] bool must_verify(ExpertKey expert) const override { return inner_.must_verify(expert); }
  Result<void> keep(ExpertKey expert, std::span<const runtime::TensorBytes> tensors,
                    const std::stop_token& stop) override {
    return inner_.keep(expert, tensors, stop);
  }
  [[nodiscard]] uint64_t block_bytes(uint32_t file) const override { return inner_.block_bytes(file); }
  [[nodiscard]] unsigned depth() const override { return inner_.depth(); }

 private:
  runtime::Tier& inner_;
  std::mutex mutex_;
  std::vector<Read> reads_;  // guarded by mutex_
};

/// Loads the expert, compares its bytes and returns the reads that it took.
std::vector<WatchedTier::Read> reads_of(OneExpert& expert, ReadMode mode) {
  FolderTier local(*expert.repository, *expert.checkpoint, {.mode = mode});
  WatchedTier storage(local);
  const auto plan =
      runtime::plan_slot(*expert.checkpoint, kExpert, {.hidden = kSide, .expert_inner = kSide, .quantization = {}});
  REQUIRE_MESSAGE(plan, (plan ? "" : plan.error().message));
  PageBuffer slot(plan->slot_bytes);
  std::promise<runtime::LoadOutcome> done;
  runtime::TransferPool pool(storage.depth());
  start_load(storage, pool,
             {.key = kExpert, .plan = &*plan, .slot = slot.bytes(), .done = [&](runtime::LoadOutcome outcome) {
                done.set_value(std::move(outcome));
              }});
  const runtime::LoadOutcome outcome = done.get_future().get();
  REQUIRE_MESSAGE(outcome.result, (outcome.result ? "" : outcome.result.error().message));
  CHECK(outcome.bytes_read == expert.bytes.size());
  std::string got;
  for (const runtime::SlotPlan::Matrix& matrix : plan->matrices)
    got.append(reinterpret_cast<const char*>(slot.bytes().data() + matrix.planes[kernels::kCodes].value()),
               kMatrixBytes);
  CHECK(got == expert.bytes);
  return storage.reads();
}

}  // namespace

TEST_CASE("expert load: through the page cache, one read for each file that holds a part of the expert") {
  OneExpert whole(false);
  const auto once = reads_of(whole, ReadMode::once);
  REQUIRE(once.size() == 1);
  CHECK(once[0].range.size() == 3 * kMatrixBytes);
  CHECK(reads_of(whole, ReadMode::buffered).size() == 1);

  OneExpert split(true);
  const auto two = reads_of(split, ReadMode::once);
  REQUIRE(two.size() == 2);
  CHECK(two[0].range.size() == 2 * kMatrixBytes);
  CHECK(two[1].range.size() == kMatrixBytes);
}

TEST_CASE("expert load: in place, the slot is the file's pages; where that is impossible, it is read") {
  OneExpert expert(true);
  FolderTier mapping(*expert.repository, *expert.checkpoint);
  WatchedTier reading(mapping);  // which does not map
  const auto plan = runtime::plan_slot(*expert.checkpoint, kExpert,
                                       {.hidden = kSide, .expert_inner = kSide, .quantization = {}}, kMapGrid);
  REQUIRE(plan);
  for (runtime::Tier* tier : {static_cast<runtime::Tier*>(&mapping), static_cast<runtime::Tier*>(&reading)}) {
    auto slot = PageRange::make(plan->slot_bytes);
    REQUIRE(slot);
    for (int turn = 0; turn < 2; ++turn) {  // a slot that another expert had
      std::promise<runtime::LoadOutcome> done;
      runtime::TransferPool pool(tier->depth());
      start_load(*tier, pool,
                 {.key = kExpert,
                  .plan = &*plan,
                  .slot = slot->bytes(),
                  .in_place = true,
                  .done = [&](runtime::LoadOutcome outcome) { done.set_value(std::move(outcome)); }});
      const runtime::LoadOutcome outcome = done.get_future().get();
      REQUIRE(outcome.result);
      CHECK(outcome.bytes_read == expert.bytes.size());
      std::string got;
      for (const runtime::SlotPlan::Matrix& matrix : plan->matrices)
        got.append(reinterpret_cast<const char*>(slot->bytes().data() + matrix.planes[kernels::kCodes].value()),
                   kMatrixBytes);
      CHECK(got == expert.bytes);
    }
  }
  CHECK(reading.reads().size() == 4);
}

TEST_CASE("slot plan: BF16 at an odd byte of its file stays where it is") {
  for (const size_t name : {1, 2, 3, 4}) {  // headers of four lengths, not padded
    test::TempFolder folder;
    std::vector<test::RawTensor> tensors;
    for (const std::string part : {"gate_proj", "up_proj", "down_proj"})
      tensors.push_back({"model.layers.0.mlp.experts.0." + part + ".weight", "BF16", {64, 64}, test::pattern(8192, 1)});
    tensors.push_back({std::string(name, 'x'), "U8", {1}, "a"});
    folder.write("model.safetensors", test::safetensors_file(tensors));
    const auto repository = format::open_repository(folder.path().string(), {}, format::posix_file_system()).value();
    const auto checkpoint = format::Checkpoint::open(*repository, 1, {}).value();
    const auto plan = runtime::plan_slot(checkpoint, kExpert, {.hidden = 64, .expert_inner = 64, .quantization = {}});
    REQUIRE(plan);
    CHECK(plan->steps.empty());
    CHECK(plan->slot_bytes <= round_up(3 * 8192, kPageBytes) + kPageBytes);
  }
}

TEST_CASE("expert load: directly or mapped, in pieces that meet and end at multiples of a block in the file") {
  OneExpert expert(false);
  for (const ReadMode mode : {ReadMode::direct, ReadMode::mapped}) {
    const auto reads = reads_of(expert, mode);
    REQUIRE(reads.size() >= 2);
    for (size_t i = 0; i < reads.size(); ++i) {
      CHECK(reads[i].range.size() <= runtime::kLocalBlockBytes);
      if (i == 0) continue;
      CHECK(reads[i].range.begin == reads[i - 1].range.end);
      CHECK(reads[i].range.begin % runtime::kLocalBlockBytes == 0);
    }
    CHECK(reads.back().range.end - reads.front().range.begin == 3 * kMatrixBytes);
  }
}

}  // namespace dspack::expert_load_test
