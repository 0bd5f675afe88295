// Weights in a local folder: the bound on open files, files that are not what the catalogue says, ways of reading and
// the choice among them.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "format/source/local_repository.h"
#include "runtime/access/folder_tier.h"
#include "runtime/access/io_choice.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/page_cache.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/temp_folder.h"

namespace dspack::folder_tier_test {

using namespace dspack;
using format::OpenFiles;
using format::ReadMode;
using runtime::FolderTier;
using runtime::IoMethod;

namespace {

/// Counts how many of its files are open at once.
struct Counter {
  std::atomic<int> open{0};
  std::atomic<int> most{0};
  std::atomic<int> opened{0};
};

class CountedFile final : public format::ReadFile {
 public:
  explicit CountedFile(Counter& counter) : counter_(counter) {
    const int now = ++counter_.open;
    ++counter_.opened;
    for (int most = counter_.most; now > most && !counter_.most.compare_exchange_weak(most, now);) {
    }
  }
  CountedFile(const CountedFile&) = delete;
  CountedFile& operator=(const CountedFile&) = delete;
  ~CountedFile() override { --counter_.open; }
  uint64_t size_bytes() const override { return 0; }
  Result<void> read(uint64_t /*offset*/, std::span<std::byte> /*into*/) const override { return {}; }

 private:
  Counter& counter_;
};

OpenFiles::Opener counted(Counter& counter) {
  return [&counter](uint32_t) -> Result<std::unique_ptr<format::ReadFile>> {
    return std::unique_ptr<format::ReadFile>(std::make_unique<CountedFile>(counter));
  };
}

/// Experts of 6 MiB in one shard each, of two layers, on the disk of the working folder.
class ExpertFolder {
 public:
  static constexpr uint64_t kTensorBytes = 2ULL << 20;
  static constexpr uint32_t kExperts = 8;

  ExpertFolder() {
    format::Json weight_map = format::Json::object();
    for (uint32_t id = 0; id < kExperts; ++id) {
      std::vector<test::RawTensor> tensors;
      for (const std::string part : {"gate_proj", "up_proj", "down_proj"}) {
        const std::string name = "model.layers.0.mlp.experts." + std::to_string(id) + "." + part + ".weight";
        tensors.push_back({name, "U8", {kTensorBytes}, test::pattern(kTensorBytes, ++seed_)});
        weight_map[name] = shard(id);
      }
      folder_.write(shard(id), test::safetensors_file(tensors));
    }
    folder_.write("model.safetensors.index.json", format::Json{{"weight_map", weight_map}}.dump());
    repository_ = format::make_local_repository(folder_.path(), files_);
    checkpoint_.emplace(format::Checkpoint::open(*repository_, 2, {}).value());
    empty_page_cache();
  }
  void empty_page_cache() const {
    for (uint32_t id = 0; id < kExperts; ++id)
      test::drop_from_page_cache(path(id));
  }
  [[nodiscard]] static std::string shard(uint32_t id) { return "expert-" + std::to_string(id) + ".safetensors"; }
  [[nodiscard]] std::filesystem::path path(uint32_t id) const { return folder_.path() / shard(id); }
  [[nodiscard]] std::string bytes(uint32_t id) const { return folder_.read(shard(id)); }
  [[nodiscard]] format::Repository& repository() { return *repository_; }
  [[nodiscard]] const format::Checkpoint& checkpoint() const { return *checkpoint_; }
  [[nodiscard]] test::FaultyFileSystem& files() { return files_; }
  [[nodiscard]] uint64_t cached() {
    uint64_t sum = 0;
    for (uint32_t id = 0; id < kExperts; ++id) {
      const auto file = repository_->open_file(shard(id), ReadMode::buffered).value();
      sum += file->cached_bytes({0, file->size_bytes()}).value_or(0);
    }
    return sum;
  }
  /// What a comparison of direct reads and the page cache needs. False: it has said why.
  [[nodiscard]] bool is_cold_on_a_disk() {
    if (cached() == 0 && repository_->open_file(shard(0), ReadMode::direct)) return true;
    MESSAGE("SKIPPED: this disk has no direct reads, or its files cannot be emptied from the page cache");
    return false;
  }
  /// Measures all of it, however small.
  [[nodiscard]] Result<runtime::IoChoice> choose() {
    return runtime::choose_io(*repository_, *checkpoint_, IoMethod::automatic,
                              {.small_bytes = 0, .block_bytes = 1 << 20, .depth = 4}, {});
  }

 private:
  test::TempFolder folder_{std::filesystem::current_path()};
  unsigned seed_ = 0;
  test::FaultyFileSystem files_{format::posix_file_system()};
  std::unique_ptr<format::Repository> repository_;
  std::optional<format::Checkpoint> checkpoint_;
};

}  // namespace

TEST_CASE("open files: the one used longest ago is closed, and no file is opened twice") {
  Counter counter;
  OpenFiles files(2, counted(counter));
  const auto touch = [&](uint32_t file) { CHECK(files.use(file).has_value()); };
  touch(0);
  touch(1);
  touch(0);
  CHECK(counter.opened == 2);
  touch(2);  // closes 1
  touch(0);
  CHECK(counter.opened == 3);
  touch(1);  // closes 2
  CHECK(counter.opened == 4);
  CHECK(counter.open == 2);
  CHECK(counter.most == 2);
}

TEST_CASE("open files: one in use is not closed, and an error of opening leaves no trace") {
  Counter counter;
  OpenFiles files(2, counted(counter));
  {
    const auto first = files.use(0);
    CHECK(files.use(1).has_value());
    CHECK(files.use(2).has_value());
    CHECK(files.use(0).has_value());
    CHECK(counter.opened == 3);
  }
  bool fails = true;
  OpenFiles failing(1, [&](uint32_t number) -> Result<std::unique_ptr<format::ReadFile>> {
    if (fails) return Error{ErrorKind::io, "no"};
    return counted(counter)(number);
  });
  CHECK(failing.use(7).error().kind == ErrorKind::io);
  CHECK(failing.use(8).error().kind == ErrorKind::io);
  fails = false;
  CHECK(failing.use(7).has_value());
}

TEST_CASE("open files: many threads stay within the bound, even below their number") {
  Counter counter;
  OpenFiles files(3, counted(counter));
  std::vector<std::jthread> threads;
  for (uint32_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < 500; ++i) {
        const auto use = files.use((i * 7 + t * 13) % 11);
        if (use) (void)use->file().size_bytes();
      }
    });
  }
  threads.clear();
  CHECK(counter.most <= 3);
  CHECK(counter.open <= 3);
}

TEST_CASE("folder tier: the bytes of every file, in every way of reading, within the bound on open files") {
  ExpertFolder folder;
  CHECK(runtime::default_open_files() >= 10);
  CHECK(runtime::default_open_files() <= 512);
  for (const ReadMode mode : {ReadMode::buffered, ReadMode::once, ReadMode::direct, ReadMode::mapped}) {
    CAPTURE(static_cast<int>(mode));
    FolderTier storage(folder.repository(), folder.checkpoint(), {.mode = mode, .max_open = 2});
    for (uint32_t file = 0; file < ExpertFolder::kExperts; ++file) {
      const std::string expected = folder.bytes(file);
      std::vector<std::byte> bytes(expected.size());
      REQUIRE(storage.read(file, 0, bytes, {}));
      CHECK(std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0);
    }
    CHECK_FALSE(storage.must_verify({}));
  }
  std::stop_source stopped;
  stopped.request_stop();
  FolderTier storage(folder.repository(), folder.checkpoint(), {.verify = true});
  std::byte one{};
  CHECK(storage.read(0, 0, {&one, 1}, stopped.get_token()).error().kind == ErrorKind::cancelled);
  CHECK(storage.must_verify({}));
}

TEST_CASE("folder tier: a file that is missing, shorter or longer than the catalogue says") {
  ExpertFolder folder;
  std::filesystem::remove(folder.path(0));
  std::filesystem::resize_file(folder.path(1), 1000);
  std::filesystem::resize_file(folder.path(2), std::filesystem::file_size(folder.path(2)) + 1);
  for (const ReadMode mode : {ReadMode::buffered, ReadMode::once, ReadMode::direct, ReadMode::mapped}) {
    CAPTURE(static_cast<int>(mode));
    FolderTier storage(folder.repository(), folder.checkpoint(), {.mode = mode});
    std::byte one{};
    CHECK(storage.read(0, 0, {&one, 1}, {}).error().kind == ErrorKind::not_found);
    for (const uint32_t file : {1U, 2U}) {
      const auto read = storage.read(file, 0, {&one, 1}, {});
      REQUIRE_FALSE(read.has_value());
      CHECK(read.error().kind == ErrorKind::corrupt);
      CHECK(read.error().message.find(folder.shard(file)) != std::string::npos);
      CHECK(read.error().message.find(" bytes instead of ") != std::string::npos);
    }
    CHECK(storage.read(3, 0, {&one, 1}, {}));
  }
}

TEST_CASE("folder tier: a disk without direct reads is read otherwise, unless they were asked for") {
  ExpertFolder folder;
  folder.files().lack(ReadMode::direct);
  std::byte one{};
  FolderTier fallen_back(folder.repository(), folder.checkpoint(), {.mode = ReadMode::direct});
  CHECK(fallen_back.read(0, 0, {&one, 1}, {}));
  FolderTier strict(folder.repository(), folder.checkpoint(), {.mode = ReadMode::direct, .is_mode_required = true});
  CHECK(strict.read(0, 0, {&one, 1}, {}).error().kind == ErrorKind::unsupported);
  const auto choice = folder.choose();
  REQUIRE(choice);
  CHECK(choice->mode == ReadMode::once);
  CHECK(choice->reason.find("refuses") != std::string::npos);
  CHECK_FALSE(choice->direct_rate);
}

TEST_CASE("choice of I/O: what is asked for is not measured, and neither is a small model") {
  ExpertFolder folder;
  for (const auto& [asked, mode] :
       {std::pair(IoMethod::direct, ReadMode::direct), std::pair(IoMethod::buffered, ReadMode::once),
        std::pair(IoMethod::mapped, ReadMode::mapped), std::pair(IoMethod::in_place, ReadMode::once)}) {
    const auto choice = runtime::choose_io(folder.repository(), folder.checkpoint(), asked, {}, {});
    REQUIRE(choice);
    CHECK(choice->mode == mode);
    CHECK(choice->in_place == (asked == IoMethod::in_place));
    CHECK(runtime::folder_options(*choice, false).is_mode_required);
    CHECK(runtime::parse_io_method(to_string(asked)) == asked);
  }
  const auto small = runtime::choose_io(folder.repository(), folder.checkpoint(), IoMethod::automatic, {}, {});
  REQUIRE(small);
  CHECK(small->mode == ReadMode::buffered);
  CHECK(small->seconds == 0);
  CHECK(folder.cached() == 0);
  CHECK_FALSE(runtime::parse_io_method("o_direct"));
}

TEST_CASE("choice of I/O: cold experts are measured both ways and stay cold") {
  ExpertFolder folder;
  if (!folder.is_cold_on_a_disk()) return;
  const auto cold = folder.choose();
  REQUIRE(cold);
  CHECK(cold->direct_rate > 0);
  CHECK(cold->buffered_rate > 0);
  CHECK(cold->cached_share == 0.0);
  CHECK((cold->mode == ReadMode::direct || cold->mode == ReadMode::once));
  // But for what the system has read ahead, less than a block for each that was read through the page cache, and a few
  // that were mapped.
  CHECK(folder.cached() <= 2 * ExpertFolder::kExperts * ExpertFolder::kTensorBytes);  // of three times as many
  const format::Json json = to_json(*cold);
  CHECK(json.at("direct_bytes_per_second") == *cold->direct_rate);
  CHECK(json.at("reason") == cold->reason);
}

TEST_CASE("choice of I/O: experts in the page cache decide for it, and stay there") {
  ExpertFolder folder;
  if (!folder.is_cold_on_a_disk()) return;
  for (uint32_t id = 0; id < ExpertFolder::kExperts; ++id)
    test::put_into_page_cache(folder.path(id), std::filesystem::file_size(folder.path(id)));
  // The kernel may take single pages back at any time: a hundredth of them here.
  constexpr uint64_t kMostly = ExpertFolder::kExperts * 3 * ExpertFolder::kTensorBytes / 100 * 99;
  if (folder.cached() < kMostly) {
    MESSAGE("SKIPPED: the system takes files out of the page cache that have just been read");
    return;
  }
  const auto warm = folder.choose();
  REQUIRE(warm);
  CHECK(warm->mode == ReadMode::once);
  REQUIRE(warm->cached_share);
  CHECK(*warm->cached_share >= 0.95);
  CHECK(*warm->cached_share <= 1.0);
  CHECK(warm->cached_rate > 0);
  CHECK_FALSE(warm->direct_rate);
  REQUIRE(warm->mapped_rate);
  CHECK(warm->in_place == (*warm->mapped_rate >= 0.93 * *warm->memory_rate));
  CHECK(folder.cached() >= kMostly / 99 * 98);
}

}  // namespace dspack::folder_tier_test
