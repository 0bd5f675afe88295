#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>

#include "format/cache/disk_room.h"
#include "runtime/access/place.h"
#include "runtime/experts/expert_load.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::distant_tier_test {

using namespace dspack;
using namespace dspack::runtime;
using format::ByteSource;
using format::Checkpoint;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

/// A folder that plays the distant place: its reads are counted and can be spoilt.
class CountingOrigin final : public format::Repository {
 public:
  struct Counts {
    std::atomic<uint64_t> opens{0};
    std::atomic<uint64_t> reads{0};
    std::atomic<int64_t> spoil_next{0};  // so many reads come with a bit flipped
  };
  CountingOrigin(std::unique_ptr<format::Repository> real, Counts& counts) : real_(std::move(real)), counts_(counts) {}

  format::RepositoryKind kind() const override { return format::RepositoryKind::http; }
  std::string description() const override { return "http://h/"; }
  std::string locate(std::string_view path) const override { return "http://h/" + std::string(path); }
  Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) override {
    ++counts_.opens;
    TRY_ASSIGN(auto source, real_->open(path, stop));
    return std::unique_ptr<ByteSource>(std::make_unique<Source>(std::move(source), counts_));
  }
  Result<std::string> read_text(std::string_view path, uint64_t limit_bytes, std::stop_token stop) override {
    ++counts_.opens;
    return real_->read_text(path, limit_bytes, stop);
  }
  Result<std::optional<std::vector<format::ListedFile>>> list(std::stop_token) override {
    return std::optional<std::vector<format::ListedFile>>();
  }
  Result<std::optional<format::DeclaredFile>> declared(std::string_view, std::stop_token) override {
    return std::optional<format::DeclaredFile>();
  }

 private:
  class Source final : public ByteSource {
   public:
    Source(std::unique_ptr<ByteSource> real, Counts& counts) : real_(std::move(real)), counts_(counts) {}
    uint64_t size_bytes() const override { return real_->size_bytes(); }
    const std::string& version() const override { return real_->version(); }
    Result<void> read(uint64_t offset, std::span<std::byte> into, std::stop_token stop) override {
      ++counts_.reads;
      TRY(real_->read(offset, into, stop));
      if (counts_.spoil_next.fetch_sub(1) > 0) into[into.size() / 2] ^= std::byte{1};
      return {};
    }
    Result<void> stream(ByteRange range, const format::ByteSink& sink, std::stop_token stop) override {
      std::vector<std::byte> bytes(range.size());
      TRY(read(range.begin, bytes, stop));
      return sink(bytes);
    }

   private:
    std::unique_ptr<ByteSource> real_;
    Counts& counts_;
  };

  std::unique_ptr<format::Repository> real_;
  Counts& counts_;
};

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

/// One run: the place, its catalogue and its tier.
struct Run {
  CheckpointPlace place;
  Checkpoint catalogue;
  std::unique_ptr<Tier> tier;
};

struct Lab {
  Lab() { original.write(source); }

  Result<std::unique_ptr<Run>> run(format::FileSystem& files, uint64_t disk_bytes = 0, uint64_t stay_free_bytes = 0) {
    auto run = std::make_unique<Run>();
    auto folder = open_repository(source.path().string(), {}, format::posix_file_system()).value();
    TRY_ASSIGN(run->place,
               runtime::open_distant_place(
                   {.origin = std::make_unique<CountingOrigin>(std::move(folder), counts),
                    .counters = std::make_shared<format::TransferCounters>(),
                    .progress = std::make_unique<Notes>(notes),
                    .cache_root = cache.path(),
                    .tier = {.disk_bytes = disk_bytes, .stay_free_bytes = stay_free_bytes, .connections = 2}},
                   files, {}));
    TRY_ASSIGN(run->catalogue, Checkpoint::open(*run->place.files, 1, {}));
    TRY_ASSIGN(auto opened, run->place.open_tier(run->catalogue, {}, {}, {}));
    run->tier = std::move(opened.tier);
    return run;
  }
  std::unique_ptr<Run> good_run(uint64_t disk_bytes = 0) {
    auto opened = run(format::posix_file_system(), disk_bytes);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().message));
    return std::move(*opened);
  }

  /// Bytes as they are in the folder.
  [[nodiscard]] std::string truth(const Run& run, const format::TensorEntry& tensor) const {
    return source.read(run.catalogue.files()[tensor.file].path).substr(tensor.range.begin, tensor.range.size());
  }
  /// Reads a tensor in two pieces. Empty: an error.
  static std::string read(Run& run, const format::TensorEntry& tensor) {
    std::string bytes(tensor.range.size(), '?');
    const auto into = std::as_writable_bytes(std::span(bytes));
    const size_t half = into.size() / 2;
    if (!run.tier->read(tensor.file, tensor.range.begin, into.first(half), {})) return {};
    if (!run.tier->read(tensor.file, tensor.range.begin + half, into.subspan(half), {})) return {};
    return bytes;
  }
  /// `flip`: with one bit that is not what was read.
  static Result<void> keep(Run& run, ExpertKey key, bool flip = false) {
    std::vector<std::string> bytes;
    for (const uint32_t tensor : run.catalogue.expert(key))
      bytes.push_back(read(run, run.catalogue.tensors()[tensor]));
    if (flip) bytes.back().back() ^= 1;
    return keep(run, key, bytes);
  }
  /// As if it had been read while it was in the cache: with a bound it may leave it at any time.
  [[nodiscard]] Result<void> keep_truth(Run& run, ExpertKey key) const {
    std::vector<std::string> bytes;
    for (const uint32_t tensor : run.catalogue.expert(key))
      bytes.push_back(truth(run, run.catalogue.tensors()[tensor]));
    return keep(run, key, bytes);
  }
  static Result<void> keep(Run& run, ExpertKey key, const std::vector<std::string>& bytes) {
    std::vector<TensorBytes> tensors;
    for (size_t i = 0; i < bytes.size(); ++i) {
      tensors.push_back({.tensor = &run.catalogue.tensors()[run.catalogue.expert(key)[i]],
                         .bytes = std::as_bytes(std::span(bytes[i]))});
    }
    return run.tier->keep(key, tensors, {});
  }
  void check_all(Run& run) const {
    for (const format::TensorEntry& tensor : run.catalogue.tensors()) {
      CAPTURE(tensor.name);
      CHECK(read(run, tensor) == truth(run, tensor));
    }
    for (const auto& [key, tensors] : run.catalogue.experts())
      CHECK(keep(run, key).has_value());
  }

  TempFolder source;
  TempFolder cache;
  SmallCheckpoint original;
  CountingOrigin::Counts counts;
  std::vector<std::string> notes;
};

constexpr ExpertKey kExpert{LayerId(1), ExpertId(2)};

}  // namespace

TEST_CASE("distant tier: without a bound the disk keeps its room, and a fuller disk as much as the cache takes") {
  constexpr uint64_t kStays = 1'000'000'000;
  Lab lab;
  test::FaultyFileSystem files(format::posix_file_system());
  const auto kept_with = [&](uint64_t free_bytes) {
    files.set_free_bytes(free_bytes);
    lab.notes.clear();
    auto run = lab.run(files, 0, kStays);
    REQUIRE_MESSAGE(run.has_value(), (run ? "" : run.error().message));
    lab.check_all(**run);
    return (*run)->tier->medium_of(kExpert) == Medium::disk;
  };
  CHECK_FALSE(kept_with(1000));
  REQUIRE(lab.notes.size() == 1);
  CHECK(lab.notes[0].find("1.00 kB of the disk are free") != std::string::npos);
  CHECK(lab.notes[0].find("--disk SIZE") != std::string::npos);
  CHECK(kept_with(kStays / 10));
  CHECK(lab.notes.empty());
  CHECK(format::usual_stay_free(0) == 10 * kStays);
  CHECK(format::usual_stay_free(100 * kStays) == 10 * kStays);
  CHECK(format::usual_stay_free(1000 * kStays) == 50 * kStays);
}

TEST_CASE("distant tier: reads what the place has, and the second time asks for nothing") {
  Lab lab;
  {
    const auto run = lab.good_run();
    CHECK(run->tier->medium_of(kExpert) == Medium::network);
    CHECK(run->tier->must_verify(kExpert));
    lab.check_all(*run);
    CHECK(run->tier->medium_of(kExpert) == Medium::disk);
  }
  const uint64_t opens = lab.counts.opens;
  const uint64_t reads = lab.counts.reads;
  const auto run = lab.good_run();
  CHECK(run->tier->medium_of(kExpert) == Medium::disk);
  CHECK(run->tier->must_verify(kExpert));
  run->tier->trust(kExpert);
  CHECK_FALSE(run->tier->must_verify(kExpert));
  const uint32_t tensor = run->catalogue.expert(kExpert).front();
  CHECK(run->catalogue.tensors()[tensor].digest == format::sha256(lab.truth(*run, run->catalogue.tensors()[tensor])));
  lab.check_all(*run);
  CHECK(lab.counts.reads == reads);
  CHECK(lab.counts.opens == opens);
  CHECK(lab.notes.empty());
}

TEST_CASE("distant tier: two runs at once") {
  Lab lab;
  const auto first = lab.good_run();
  const auto second = lab.run(format::posix_file_system());
  REQUIRE_FALSE(second.has_value());
  CHECK(second.error().kind == ErrorKind::conflict);
}

TEST_CASE("distant tier: what the cache has spoilt is fetched again") {
  Lab lab;
  {
    const auto run = lab.good_run();
    lab.check_all(*run);
  }
  const auto folder = cache_folder_of(lab.cache.path(), "http://h/");
  for (const char* path : {"model/layers/000/dense.safetensors", "model/head.safetensors"}) {
    std::fstream file(folder / path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x01');
  }
  std::filesystem::remove(folder / "model/layers/001/experts/002.safetensors");
  const auto run = lab.good_run();
  CHECK(run->tier->medium_of(kExpert) == Medium::network);
  lab.check_all(*run);
  CHECK(run->tier->distrust(kExpert));
  CHECK(run->tier->medium_of(kExpert) == Medium::network);
  CHECK_FALSE(run->tier->distrust(kExpert));
  lab.check_all(*run);
}

TEST_CASE("distant tier: a digest that does not fit once is overcome, twice refused") {
  Lab lab;
  {
    const auto run = lab.good_run();
    lab.check_all(*run);
  }
  std::filesystem::remove(cache_folder_of(lab.cache.path(), "http://h/") / "model/head.safetensors");
  const auto head = [](const Run& run) { return *run.catalogue.find("lm_head.weight"); };
  {
    const auto run = lab.good_run();
    const format::Digest first_fetch = format::sha256(lab.truth(*run, head(*run)));
    run->catalogue.learn_digest(
        static_cast<uint32_t>(run->catalogue.find("lm_head.weight") - run->catalogue.tensors().data()), first_fetch);
    lab.counts.spoil_next = 2;
    CHECK(Lab::read(*run, head(*run)).empty());
    lab.counts.spoil_next = 1;
    CHECK(Lab::read(*run, head(*run)) == lab.truth(*run, head(*run)));
    CHECK(run->tier->traffic()->refetches >= 2);
  }
}

TEST_CASE("distant tier: a disk that is full from any moment on costs no byte and is told once") {
  test::FaultyFileSystem counting(format::posix_file_system());
  {
    Lab lab;
    auto run = lab.run(counting);
    lab.check_all(**run);
  }
  const uint64_t operations = counting.operations();
  uint64_t went_on = 0;
  for (uint64_t from = 0; from < operations; from += 1 + operations / 20) {
    CAPTURE(from);
    Lab lab;
    test::FaultyFileSystem full(format::posix_file_system(),
                                {.from = from, .kind = ErrorKind::budget, .growing_only = true});
    auto run = lab.run(full);
    if (!run) {  // before there was a cache at all
      CHECK(run.error().kind == ErrorKind::budget);
      continue;
    }
    lab.check_all(**run);
    CHECK(lab.notes.size() <= 1);
    ++went_on;
  }
  CHECK(went_on > 8);
}

TEST_CASE("distant tier: a bounded cache removes what was not used for longest") {
  Lab lab;
  constexpr uint64_t kExpertBytes = 4096 + 3 * (64 * 64 + 4);
  constexpr uint64_t kBound = 2 * kExpertBytes + 4000;
  const auto run = lab.good_run(kBound);
  const ExpertKey experts[] = {{LayerId(0), ExpertId(0)}, {LayerId(0), ExpertId(1)}, {LayerId(0), ExpertId(2)}};
  for (const ExpertKey key : {experts[0], experts[1]})
    REQUIRE(Lab::keep(*run, key).has_value());
  REQUIRE_FALSE(Lab::read(*run, run->catalogue.tensors()[run->catalogue.expert(experts[0]).front()]).empty());
  REQUIRE(Lab::keep(*run, experts[2]).has_value());
  CHECK(run->tier->medium_of(experts[0]) == Medium::disk);
  CHECK(run->tier->medium_of(experts[1]) == Medium::network);
  CHECK(run->tier->medium_of(experts[2]) == Medium::disk);
  CHECK(run->tier->traffic()->cache_size_bytes <= kBound);
  CHECK(run->tier->must_verify(experts[0]));
}

TEST_CASE("distant tier: the bound holds while threads keep experts, rows and tensors at the same time") {
  Lab lab;
  uint64_t others = 0;
  const uint64_t everything = [&] {
    const auto run = lab.good_run();
    for (const format::TensorEntry& tensor : run->catalogue.tensors())
      if (!tensor.place.expert) REQUIRE_FALSE(Lab::read(*run, tensor).empty());
    others = run->tier->traffic()->cache_size_bytes;
    for (const auto& [key, tensors] : run->catalogue.experts())
      REQUIRE(Lab::keep(*run, key).has_value());
    const uint64_t all = run->tier->traffic()->cache_size_bytes;
    REQUIRE(all > 2 * others);
    return all;
  }();
  constexpr uint64_t kExpertBytes = 4096 + 3 * (64 * 64 + 4);
  // The first opens what the run above has kept without a bound. In the last there is room for one expert at a time.
  for (const uint64_t bound : {everything - 1, everything * 3 / 4, everything / 2, others + kExpertBytes}) {
    CAPTURE(bound);
    lab.notes.clear();
    const auto run = lab.good_run(bound);
    std::atomic<uint64_t> highest = run->tier->traffic()->cache_size_bytes;
    CHECK(highest <= bound);
    std::atomic<bool> is_done{false};
    std::jthread watcher([&] {
      while (!is_done)
        highest = std::max(highest.load(), run->tier->traffic()->cache_size_bytes);
    });
    {
      std::vector<std::jthread> keepers;
      for (unsigned thread = 0; thread < 4; ++thread) {
        keepers.emplace_back([&, thread] {
          for (unsigned round = 0; round < 3; ++round) {
            for (const auto& [key, tensors] : run->catalogue.experts())
              if (key.expert.value % 4 == thread) CHECK(lab.keep_truth(*run, key).has_value());
            if (thread != 0) continue;
            for (const format::TensorEntry& tensor : run->catalogue.tensors())
              if (!tensor.place.expert) CHECK(Lab::read(*run, tensor) == lab.truth(*run, tensor));
          }
        });
      }
    }
    is_done = true;
    watcher.join();
    CHECK(highest <= bound);
    CHECK(run->tier->traffic()->cache_size_bytes > bound / 2);
    CHECK(lab.notes.empty());  // there was always room for one, if not for all who came at once
  }
}

TEST_CASE("distant tier: an expert that is fetched again must be what it was, kept or not") {
  constexpr uint64_t kExpertBytes = 4096 + 3 * (64 * 64 + 4);
  const auto check = [](Lab& lab, Run& run) {
    for (const uint32_t number : run.catalogue.expert(kExpert)) {
      const format::TensorEntry& tensor = run.catalogue.tensors()[number];
      REQUIRE_FALSE(tensor.digest.has_value());
      CHECK(run.tier->digest_of(tensor) == format::sha256(lab.truth(run, tensor)));
      std::string bytes = lab.truth(run, tensor);
      const TensorBytes stored{.tensor = &tensor, .bytes = std::as_bytes(std::span(bytes))};
      CHECK(check_digests(*run.tier, {&stored, 1}).has_value());
      bytes.back() ^= 1;
      const auto checked = check_digests(*run.tier, {&stored, 1});
      REQUIRE_FALSE(checked.has_value());
      CHECK(checked.error().kind == ErrorKind::corrupt);
      CHECK(checked.error().message.find("first fetched") != std::string::npos);
    }
  };
  SUBCASE("pushed out of a bounded cache") {
    Lab lab;
    const auto run = lab.good_run(kExpertBytes + 4000);
    CHECK(run->tier->digest_of(run->catalogue.tensors()[run->catalogue.expert(kExpert)[0]]) == std::nullopt);
    REQUIRE(Lab::keep(*run, kExpert).has_value());
    REQUIRE(Lab::keep(*run, {LayerId(0), ExpertId(0)}).has_value());
    REQUIRE(run->tier->medium_of(kExpert) == Medium::network);
    check(lab, *run);
    const auto kept = Lab::keep(*run, kExpert, true);
    REQUIRE_FALSE(kept.has_value());
    CHECK(kept.error().kind == ErrorKind::corrupt);
    CHECK(kept.error().message.find("is not what it was the first time") != std::string::npos);
    CHECK(run->tier->medium_of(kExpert) == Medium::network);
    CHECK(Lab::keep(*run, kExpert).has_value());
    CHECK(run->tier->medium_of(kExpert) == Medium::disk);
  }
  SUBCASE("never kept, for lack of space") {
    Lab lab;
    test::FaultyFileSystem full(format::posix_file_system());
    auto run = lab.run(full);
    REQUIRE(run.has_value());
    full.fail_with({.from = full.operations(), .kind = ErrorKind::budget, .growing_only = true});
    REQUIRE(Lab::keep(**run, kExpert).has_value());
    REQUIRE((*run)->tier->medium_of(kExpert) == Medium::network);
    check(lab, **run);
  }
}

}  // namespace dspack::distant_tier_test
