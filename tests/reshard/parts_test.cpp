#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>

#include "reshard/run/repack.h"
#include "reshard/run/seal_parts.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::parts_test {

using namespace dspack;
using reshard::Part;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

/// A small checkpoint and a recipe; parts and their joining in folders of choice.
class Lab {
 public:
  explicit Lab(std::string_view recipe) {
    SmallCheckpoint().write(source_);
    options_.recipe = reshard::parse_recipe(recipe).value();
    options_.jobs = 1;  // then operations come in one order
    repository_ = open_repository(source_.path().string(), {}, format::posix_file_system()).value();
    outlook_ = std::make_unique<reshard::RepackOutlook>(reshard::prepare_repack(*repository_, options_, {}).value());
  }

  Result<reshard::PartOutcome> part(Part part, const format::Path& out,
                                    format::FileSystem& files = format::posix_file_system()) {
    return reshard::repack_part(*outlook_, *repository_, into(out), part, files, progress_, {});
  }
  Result<reshard::RepackOutcome> seal(const format::Path& out,
                                      format::FileSystem& files = format::posix_file_system()) {
    return reshard::seal_parts(*outlook_, *repository_, into(out), files, progress_, {});
  }
  Result<reshard::RepackOutcome> whole(const format::Path& out) {
    return reshard::repack(*outlook_, *repository_, into(out), format::posix_file_system(), progress_, {});
  }
  [[nodiscard]] const reshard::Plan& plan() const { return outlook_->plan; }

 private:
  reshard::RepackOptions into(const format::Path& out) const {
    reshard::RepackOptions options = options_;
    options.out = out;
    return options;
  }

  TempFolder source_;
  reshard::RepackOptions options_;
  std::unique_ptr<format::Repository> repository_;
  std::unique_ptr<reshard::RepackOutlook> outlook_;
  format::SilentProgress progress_;
};

constexpr std::string_view kRecipes[] = {
    R"({"by":"expert"})",
    R"({"by":"layer"})",
    R"({"by":"shard:20000"})",
    R"({"by":"layer","compress":"zstd"})",
    R"({"by":"expert","transform":["fp8-to-f32"]})",
    R"({"by":"layer","include":[{"layers":1}]})",
};

}  // namespace

TEST_CASE("parts: a text is a part, or says what would be one") {
  CHECK(reshard::parse_part("1/1").value() == Part{1, 1});
  CHECK(reshard::parse_part("16/163").value() == Part{16, 163});
  for (const char* text : {"", "1", "/", "1/", "/2", "0/2", "3/2", "1/0", "-1/2", "+1/2", "1/2/3", "1/ 2", "1/10001",
                           "99999999999/99999999999", "a/b"}) {
    CAPTURE(text);
    CHECK(reshard::parse_part(text).error().message.find("I/N") != std::string::npos);
  }
}

TEST_CASE("parts: every shard is in one of them, neighbours together, bytes shared out") {
  reshard::Plan plan;
  std::mt19937 random(7);
  for (int i = 0; i < 163; ++i) {
    const uint64_t bytes = i % 10 == 0 ? 0 : random() % 5'000'000'000ULL;
    plan.reads.push_back({true, {{0, bytes}}});
  }
  const auto bytes_of = [&](const std::vector<uint64_t>& shards) {
    return std::accumulate(shards.begin(), shards.end(), uint64_t{0},
                           [&](uint64_t sum, uint64_t shard) { return sum + plan.reads[shard].bytes(); });
  };
  const uint64_t total = bytes_of(reshard::shards_of(plan, {1, 1}));
  for (const uint32_t count : {1U, 2U, 3U, 7U, 16U, 163U, 1000U}) {
    CAPTURE(count);
    std::vector<uint64_t> all;
    for (uint32_t number = 1; number <= count; ++number) {
      const auto shards = reshard::shards_of(plan, {number, count});
      all.insert(all.end(), shards.begin(), shards.end());
      if (count <= 16) CHECK(bytes_of(shards) <= total / count + 5'000'000'000ULL);
    }
    std::vector<uint64_t> wanted(plan.reads.size());
    std::iota(wanted.begin(), wanted.end(), uint64_t{0});
    CHECK(all == wanted);
  }
}

TEST_CASE("parts: together they make what one process makes, byte for byte, whatever their count, the last one first") {
  for (const std::string_view recipe : kRecipes) {
    CAPTURE(recipe);
    Lab lab(recipe);
    const TempFolder target;
    REQUIRE(lab.whole(target.path() / "whole").has_value());
    const auto whole = test::tree(target.path() / "whole");
    for (const uint32_t count : {1U, 2U, 3U, 5U}) {
      CAPTURE(count);
      const format::Path out = target.path() / std::to_string(count);
      for (uint32_t i = 0; i < count; ++i) {
        CHECK(lab.seal(out).error().kind == ErrorKind::conflict);  // not yet
        const auto done = lab.part({count - i, count}, out);
        REQUIRE_MESSAGE(done.has_value(), done.error().message);
        CHECK(done->done_parts == i + 1);
      }
      CHECK_FALSE(std::filesystem::exists(out / "manifest.json"));
      const auto sealed = lab.seal(out);
      REQUIRE_MESSAGE(sealed.has_value(), sealed.error().message);
      CHECK(*sealed == reshard::RepackOutcome::made);
      CHECK(test::tree(out) == whole);
      CHECK(lab.seal(out).value() == reshard::RepackOutcome::already_complete);
      CHECK(lab.part({1, count}, out).value().repository_is_complete);
    }
  }
}

TEST_CASE("parts: made in folders of their own and copied into one, they are joined as well") {
  Lab lab(R"({"by":"layer"})");
  const TempFolder target;
  REQUIRE(lab.whole(target.path() / "whole").has_value());
  const format::Path out = target.path() / "all";
  for (uint32_t number = 1; number <= 3; ++number) {
    const format::Path own = target.path() / std::to_string(number);
    REQUIRE(lab.part({number, 3}, own).has_value());
    std::filesystem::copy(own, out,
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  }
  // What is forgotten, or came over damaged, is named, and copying it again mends it.
  std::vector<format::Path> made;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(out)) {
    if (entry.path().extension() == ".safetensors") made.push_back(entry.path());
  }
  REQUIRE(made.size() > 4);
  size_t pieces = 0;
  for (const format::Path& path : made) {
    CAPTURE(path.string());
    const format::Path aside = target.path() / "aside";
    std::filesystem::rename(path, aside);
    const auto refused = lab.seal(out);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().message.find(path.string() + ": is missing") != std::string::npos);
    std::filesystem::rename(aside, path);
    pieces += path.string().find("/.reshard/") != std::string::npos ? 1 : 0;
  }
  CHECK(pieces >= 2);
  const auto sealed = lab.seal(out);
  REQUIRE_MESSAGE(sealed.has_value(), sealed.error().message);
  CHECK(test::tree(out) == test::tree(target.path() / "whole"));
}

TEST_CASE("parts: a piece that does not read as it was written is found before anything is lost") {
  Lab lab(R"({"by":"layer"})");
  const TempFolder target;
  REQUIRE(lab.whole(target.path() / "whole").has_value());
  const format::Path out = target.path() / "out";
  for (uint32_t number = 1; number <= 3; ++number)
    REQUIRE(lab.part({number, 3}, out).has_value());
  std::vector<format::Path> pieces;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(out / ".reshard")) {
    if (entry.path().extension() == ".safetensors") pieces.push_back(entry.path());
  }
  REQUIRE(pieces.size() >= 2);
  std::sort(pieces.begin(), pieces.end());
  for (const format::Path& piece : pieces) {
    CAPTURE(piece.string());
    if (!std::filesystem::exists(piece)) continue;  // the joint file was begun with it, when another was refused
    std::string good;
    {
      std::ifstream in(piece, std::ios::binary);
      good.assign(std::istreambuf_iterator<char>(in), {});
    }
    std::string bad = good;
    for (size_t i = 4096; i < bad.size(); ++i)  // behind the header: in whichever tensors this part has
      bad[i] = static_cast<char>(bad[i] ^ 1);
    std::ofstream(piece, std::ios::binary) << bad;
    const auto refused = lab.seal(out);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().kind == ErrorKind::corrupt);
    CHECK_MESSAGE(refused.error().message.find(piece.string()) != std::string::npos, refused.error().message);
    std::ofstream(piece, std::ios::binary) << good;
  }
  const auto sealed = lab.seal(out);
  REQUIRE_MESSAGE(sealed.has_value(), sealed.error().message);
  CHECK(test::tree(out) == test::tree(target.path() / "whole"));
}

TEST_CASE("parts: what does not belong together is refused") {
  Lab by_layer(R"({"by":"layer"})");
  Lab by_expert(R"({"by":"expert"})");
  const TempFolder target;
  const format::Path out = target.path() / "out";
  const auto refusal = [](const auto& result) { return result.has_value() ? std::string() : result.error().message; };
  REQUIRE(by_layer.part({1, 3}, out).has_value());
  CHECK(refusal(by_layer.part({2, 2}, out)).find("all must be of one count") != std::string::npos);
  std::filesystem::remove_all(out / ".reshard/parts/2-of-2");
  CHECK(refusal(by_expert.part({2, 3}, out)).find("another recipe") != std::string::npos);
  std::filesystem::remove_all(out / ".reshard/parts/2-of-3");
  CHECK(refusal(by_layer.whole(out)).find("holds parts of a repack") != std::string::npos);
  CHECK(refusal(by_layer.seal(out)).find("part 2/3 was not started here, part 3/3 was not") != std::string::npos);

  // One process at a time works on a part; and none while they are sealed.
  format::FileSystem& files = format::posix_file_system();
  {
    const auto lock = files.lock(out / ".reshard/parts/1-of-3/lock", format::LockKind::exclusive);
    CHECK(refusal(by_layer.part({1, 3}, out)).find("another reshard is working on part 1/3") != std::string::npos);
    REQUIRE(by_layer.part({2, 3}, out).has_value());
  }
  {
    const auto lock = files.lock(out / ".reshard/lock", format::LockKind::shared);
    CHECK(refusal(by_layer.seal(out)).find("another reshard is working on this folder") != std::string::npos);
    REQUIRE(by_layer.part({3, 3}, out).has_value());
  }
  std::filesystem::create_directories(out / ".reshard/parts/strange");
  CHECK(refusal(by_layer.seal(out)).find("strange: is no part") != std::string::npos);
  std::filesystem::remove_all(out / ".reshard/parts/strange");
  CHECK(by_layer.seal(out).has_value());

  const format::Path begun = target.path() / "begun";
  target.write("begun/.reshard/journal", "");
  CHECK(refusal(by_layer.part({1, 3}, begun)).find("unfinished repacking") != std::string::npos);
  target.write("full/precious.txt", "x");
  CHECK(refusal(by_layer.part({1, 3}, target.path() / "full")).find("not empty") != std::string::npos);
}

TEST_CASE("parts: too little disk is refused by what the part itself writes, before anything is created") {
  Lab lab(R"({"by":"expert"})");
  const TempFolder target;
  uint64_t sum = 0;
  uint64_t all = 0;
  uint64_t repeated = 0;
  std::vector<bool> begun(lab.plan().files.size(), false);
  int busy = 0;
  for (const format::PlannedFile& file : lab.plan().files)
    all += file.size_bytes;
  for (uint32_t number = 1; number <= 3; ++number) {
    const auto own = reshard::bytes_per_file(lab.plan(), reshard::shards_of(lab.plan(), {number, 3}));
    const uint64_t need = std::accumulate(own.begin(), own.end(), uint64_t{0});
    for (size_t file = 0; file < own.size(); ++file) {
      if (own[file] == 0) continue;
      repeated += begun[file] ? lab.plan().files[file].data_start : 0;
      begun[file] = true;
    }
    sum += need;
    if (need == 0) continue;  // more parts than shards of equal weight
    ++busy;
    test::FaultyFileSystem files(format::posix_file_system());
    files.set_free_bytes(need - 1);
    CHECK(lab.part({number, 3}, target.path() / "out", files).error().kind == ErrorKind::budget);
    CHECK_FALSE(std::filesystem::exists(target.path() / "out"));
    files.set_free_bytes(need);
    CHECK(lab.part({number, 3}, target.path() / std::to_string(number), files).has_value());
  }
  CHECK(busy >= 2);
  CHECK(sum == all + repeated);  // headers of files in several parts stand in each
}

TEST_CASE("parts: failing at an operation of a part or of the joining, the next call ends with the same bytes") {
  for (const std::string_view recipe : kRecipes) {
    CAPTURE(recipe);
    Lab lab(recipe);
    const TempFolder target;
    REQUIRE(lab.whole(target.path() / "whole").has_value());
    const auto whole = test::tree(target.path() / "whole");
    const format::Path out = target.path() / "cut";
    const auto run = [&](format::FileSystem& files) -> Result<void> {
      for (const uint32_t number : {2U, 1U})
        TRY(lab.part({number, 2}, out, files));
      TRY(lab.seal(out, files));
      return {};
    };
    const auto sealed = [&](const format::Path& folder) -> Result<void> {
      TRY(lab.seal(folder));
      return {};
    };
    test::FaultyFileSystem counting(format::posix_file_system());
    REQUIRE(run(counting).has_value());
    REQUIRE(test::tree(out) == whole);
    std::filesystem::remove_all(out);
    // Each operation for one recipe; of the others, which differ in few of them, every fifth.
    const uint64_t step = recipe == kRecipes[1] ? 1 : 5;
    for (uint64_t operation = 0; operation < counting.operations(); operation += step) {
      CAPTURE(operation);
      test::FaultyFileSystem failing(format::posix_file_system());
      failing.fail_from(operation);
      REQUIRE_FALSE(run(failing).has_value());
      // Once the joining has begun, seal alone goes on, and a part says so.
      const bool joins =
          !std::filesystem::exists(out / "manifest.json") &&
          (std::filesystem::exists(out / ".reshard/part") || std::filesystem::exists(out / ".reshard/journal"));
      if (joins) CHECK(lab.part({1, 2}, out).error().kind == ErrorKind::conflict);
      const auto resumed = joins ? sealed(out) : run(format::posix_file_system());
      REQUIRE_MESSAGE(resumed.has_value(), resumed.error().message);
      REQUIRE(test::tree(out) == whole);
      std::filesystem::remove_all(out);
    }
  }
}

}  // namespace dspack::parts_test
