#include <doctest/doctest.h>

#include "format/compressed/expanding_repository.h"
#include "reshard/run/repack.h"
#include "reshard/verbs/verify.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/small_disk.h"

namespace dspack::disk_need_test {

using namespace dspack;
using test::SmallCheckpoint;
using test::SmallDisk;
using test::TempFolder;

namespace {

constexpr uint64_t kPlenty = 1ULL << 40;

struct Case {
  std::string recipe;  // JSON
  unsigned jobs = 1;
  uint64_t batch_bytes = 1;
};

/// A run of one such case, from a source on the real disk.
class Packing {
 public:
  Packing(const TempFolder& source, const format::Path& out, const Case& which)
      : repository_(open_repository(source.path().string(), {}, format::posix_file_system()).value()),
        options_{.recipe = reshard::parse_recipe(which.recipe).value(),
                 .out = out,
                 .jobs = which.jobs,
                 .seal_batch_bytes = which.batch_bytes},
        outlook_(reshard::prepare_repack(*repository_, options_, {}).value()) {}

  [[nodiscard]] uint64_t need() const { return reshard::disk_bytes(outlook_, reshard::disk_use(options_)); }
  Result<reshard::RepackOutcome> run(format::FileSystem& files) {
    format::SilentProgress progress;
    return reshard::repack(outlook_, *repository_, options_, files, progress, {});
  }

 private:
  std::unique_ptr<format::Repository> repository_;
  reshard::RepackOptions options_;
  reshard::RepackOutlook outlook_;
};

std::vector<std::string> findings(const format::Path& out) {
  const auto repository =
      format::make_expanding_repository(open_repository(out.string(), {}, format::posix_file_system()).value());
  const auto catalogue = format::Checkpoint::open(*repository, 1, {});
  if (!catalogue) return {catalogue.error().message};
  format::SilentProgress progress;
  return reshard::verify_digests(*repository, *catalogue, 2, progress, {}).value().findings;
}

/// Experts large enough that files, and not the bookkeeping beside them, fill the disk; nothing of them can be
/// compressed.
void write_source(const TempFolder& folder, bool compressible) {
  SmallCheckpoint checkpoint;
  uint32_t state = 1;
  for (uint32_t expert = 0; expert < 8; ++expert) {
    const size_t shard = expert % 3;
    checkpoint.add(shard, "model.layers.1.mlp.experts." + std::to_string(100 + expert) + ".up_proj.weight", "U8",
                   {40'000}, 1);
    for (char& byte : checkpoint.shard(shard).back().bytes) {
      state = state * 1'664'525 + 1'013'904'223;
      byte = compressible ? 'a' : static_cast<char>(state >> 24);
    }
  }
  checkpoint.write(folder);
}

}  // namespace

TEST_CASE("disk need: on a disk that has just what is asked for a run ends, and takes no more") {
  for (const bool compressible : {false, true}) {
    const TempFolder source;
    write_source(source, compressible);
    for (const Case& which :
         {Case{R"({"by":"expert","compress":"zstd"})"}, Case{R"({"by":"layer","compress":"zstd"})"},
          Case{R"({"by":"expert","compress":"zstd:3"})", 4}, Case{R"({"by":"expert","compress":"zstd"})", 1, kPlenty},
          Case{R"({"by":"expert","compress":"zstd"})", 2, 50'000}, Case{R"({"by":"expert"})"}}) {
      CAPTURE(compressible);
      CAPTURE(which.recipe);
      CAPTURE(which.jobs);
      CAPTURE(which.batch_bytes);
      const TempFolder target;
      Packing packing(source, target.path() / "out", which);
      SmallDisk just_enough(format::posix_file_system(), packing.need());
      const auto made = packing.run(just_enough);
      REQUIRE_MESSAGE(made.has_value(), made.error().message);
      CHECK(just_enough.most_bytes() <= packing.need());
      CHECK(findings(target.path() / "out").empty());

      SmallDisk too_small(format::posix_file_system(), packing.need() - 1);
      const TempFolder other;
      const auto refused = Packing(source, other.path() / "out", which).run(too_small);
      REQUIRE_FALSE(refused.has_value());
      CHECK(refused.error().kind == ErrorKind::budget);
      CHECK_FALSE(std::filesystem::exists(other.path() / "out"));
    }
  }
}

TEST_CASE("disk need: the larger a batch, the more lies there both raw and compressed") {
  const TempFolder source;
  write_source(source, false);
  const TempFolder target;
  const auto most = [&](const Case& which) {
    SmallDisk disk(format::posix_file_system(), kPlenty);
    const format::Path out = target.path() / "out";
    REQUIRE(Packing(source, out, which).run(disk).has_value());
    std::filesystem::remove_all(out);
    return disk.most_bytes();
  };
  const uint64_t one_by_one = most({R"({"by":"expert","compress":"zstd"})"});
  const uint64_t at_once = most({R"({"by":"expert","compress":"zstd"})", 1, kPlenty});
  CHECK(at_once > one_by_one + 40'000);  // a shard brings two or three of the large files
}

TEST_CASE("disk need: a disk that fills while files are compressed leaves a run that can go on") {
  const TempFolder source;
  write_source(source, false);
  const Case which{R"({"by":"expert","compress":"zstd"})"};
  const TempFolder whole;
  SmallDisk plenty(format::posix_file_system(), kPlenty);
  REQUIRE(Packing(source, whole.path() / "out", which).run(plenty).has_value());
  const auto wanted = test::tree(whole.path() / "out");
  for (uint64_t share = 1; share < 16; ++share) {
    CAPTURE(share);
    const TempFolder target;
    Packing packing(source, target.path() / "out", which);
    SmallDisk small(format::posix_file_system(), plenty.most_bytes() * share / 16);
    // Somebody else has taken the space that was free when the run began.
    test::FaultyFileSystem optimistic(small);
    optimistic.set_free_bytes(kPlenty);
    const auto cut = packing.run(optimistic);
    REQUIRE_FALSE(cut.has_value());
    CHECK(cut.error().kind == ErrorKind::budget);
    const auto resumed = packing.run(format::posix_file_system());
    REQUIRE_MESSAGE(resumed.has_value(), resumed.error().message);
    CHECK(test::tree(target.path() / "out") == wanted);
  }
}

TEST_CASE("disk need: a compressing run that fails at any operation ends with the same bytes the next time") {
  const TempFolder source;
  SmallCheckpoint().write(source);
  for (const uint64_t batch_bytes : {uint64_t{1}, kPlenty}) {
    const Case which{R"({"by":"expert","compress":"zstd"})", 1, batch_bytes};
    const TempFolder target;
    test::FaultyFileSystem counting(format::posix_file_system());
    REQUIRE(Packing(source, target.path() / "whole", which).run(counting).has_value());
    const auto whole = test::tree(target.path() / "whole");
    for (uint64_t operation = 0; operation < counting.operations(); ++operation) {
      CAPTURE(batch_bytes);
      CAPTURE(operation);
      Packing packing(source, target.path() / "cut", which);
      test::FaultyFileSystem failing(format::posix_file_system());
      failing.fail_from(operation);
      REQUIRE_FALSE(packing.run(failing).has_value());
      const auto resumed = packing.run(format::posix_file_system());
      REQUIRE_MESSAGE(resumed.has_value(), resumed.error().message);
      REQUIRE(test::tree(target.path() / "cut") == whole);
      std::filesystem::remove_all(target.path() / "cut");
    }
  }
}

}  // namespace dspack::disk_need_test
