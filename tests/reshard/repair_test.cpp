#include <doctest/doctest.h>

#include <algorithm>

#include "format/compressed/expanding_repository.h"
#include "format/source/local_repository.h"
#include "reshard/run/repack.h"
#include "reshard/verbs/repair/repair_unfinished.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::repair_test {

using namespace dspack;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

std::unique_ptr<format::Repository> open_source(const TempFolder& source) {
  return open_repository(source.path().string(), {}, format::posix_file_system()).value();
}

Result<reshard::RepackOutlook> prepare(format::Repository& repository, const reshard::RepackOptions& options) {
  return reshard::prepare_repack(repository, options, {});
}

reshard::RepackOptions options_of(std::string_view recipe, const format::Path& out) {
  // So few bytes that most shards are recorded in the midst of tensors.
  return {.recipe = reshard::parse_recipe(recipe).value(), .out = out, .jobs = 1, .first_record_bytes = 100};
}

Result<void> pack(const TempFolder& source, const format::Path& out, std::string_view recipe,
                  format::FileSystem& files) {
  const auto repository = open_source(source);
  const reshard::RepackOptions options = options_of(recipe, out);
  TRY_ASSIGN(const reshard::RepackOutlook outlook, prepare(*repository, options));
  format::SilentProgress progress;
  TRY(reshard::repack(outlook, *repository, options, files, progress, {}));
  return {};
}

Result<reshard::RepairReport> repair(const TempFolder& source, const format::Path& out, format::FileSystem& files) {
  const auto folder = format::make_expanding_repository(format::make_local_repository(out, files));
  TRY_ASSIGN(const format::Checkpoint packed, format::Checkpoint::open(*folder, 1, {}));
  const reshard::OpenSource open = [&source]() -> Result<std::unique_ptr<format::Repository>> {
    return open_source(source);
  };
  format::SilentProgress progress;
  return reshard::repair(packed, {.folder = out, .jobs = 1}, open, files, progress, {});
}

Result<reshard::RepairReport> repair_begun(const TempFolder& source, const format::Path& out, std::string_view recipe,
                                           format::FileSystem& files) {
  const auto repository = open_source(source);
  const reshard::RepackOptions options = options_of(recipe, out);
  TRY_ASSIGN(const reshard::RepackOutlook outlook, prepare(*repository, options));
  format::SilentProgress progress;
  return reshard::repair_unfinished(outlook, *repository, options, reshard::Scrutiny::bytes, files, progress, {});
}

void write_file(const format::Path& path, std::string_view bytes) {
  REQUIRE(format::write_sealed(format::posix_file_system(), path, bytes).has_value());
}

/// Loses the first, cuts the second, flips the last byte of the third ... of the files.
void damage(const format::Path& out, const std::map<std::string, std::string>& files) {
  size_t number = 0;
  for (const auto& [path, bytes] : files) {
    if (path == "manifest.json" || path.starts_with(".reshard/journal") || bytes.empty()) continue;
    std::string changed = bytes;
    switch (number++ % 4) {
      case 0: std::filesystem::remove(out / path); continue;
      case 1: changed.resize(changed.size() / 2); break;
      case 2: changed.back() ^= 1; break;
      default: continue;
    }
    write_file(out / path, changed);
  }
  REQUIRE(number > 8);
}

constexpr std::string_view kRecipes[] = {R"({"by":"expert"})", R"({"by":"layer"})",
                                         R"({"by":"layer","compress":"zstd"})"};

}  // namespace

TEST_CASE("repair: failing at any operation, the next call ends with the sealed bytes") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  for (const std::string_view recipe : kRecipes) {
    CAPTURE(recipe);
    const format::Path out = target.path() / "out";
    REQUIRE(pack(source, out, recipe, format::posix_file_system()).has_value());
    const auto whole = test::tree(out);
    damage(out, whole);
    const auto damaged = test::tree(out);
    test::FaultyFileSystem counting(format::posix_file_system());
    REQUIRE(repair(source, out, counting).has_value());
    REQUIRE(test::tree(out) == whole);
    REQUIRE(counting.operations() > 100);
    for (uint64_t operation = 0; operation < counting.operations(); ++operation) {
      CAPTURE(operation);
      std::filesystem::remove_all(out);
      for (const auto& [path, bytes] : damaged) {
        std::filesystem::create_directories((out / path).parent_path());
        write_file(out / path, bytes);
      }
      test::FaultyFileSystem failing(format::posix_file_system());
      failing.fail_from(operation);
      REQUIRE_FALSE(repair(source, out, failing).has_value());
      const auto again = repair(source, out, format::posix_file_system());
      REQUIRE_MESSAGE(again.has_value(), again.error().message);
      REQUIRE(again->left.empty());
      REQUIRE(test::tree(out) == whole);
    }
    std::filesystem::remove_all(out);
  }
}

TEST_CASE(
    "repair: an unfinished repository broken off anywhere and damaged then ends with the bytes of an undisturbed one") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  for (const std::string_view recipe : kRecipes) {
    CAPTURE(recipe);
    test::FaultyFileSystem counting(format::posix_file_system());
    REQUIRE(pack(source, target.path() / "whole", recipe, counting).has_value());
    const auto whole = test::tree(target.path() / "whole");
    size_t repaired = 0;
    size_t begun = 0;
    for (uint64_t operation = 20; operation < counting.operations(); operation += 7) {
      CAPTURE(operation);
      const format::Path out = target.path() / "out";
      std::filesystem::remove_all(out);
      test::FaultyFileSystem failing(format::posix_file_system());
      failing.fail_from(operation);
      REQUIRE_FALSE(pack(source, out, recipe, failing).has_value());
      if (!std::filesystem::exists(out / ".reshard" / "journal")) continue;
      const auto left = test::tree(out);
      begun += left.at(".reshard/journal").find(R"("begun")") != std::string::npos ? 1 : 0;
      size_t number = operation;
      for (const auto& [path, bytes] : left) {
        if (path == ".reshard/journal" || path == ".reshard/lock") continue;
        if (number % 4 == 0) std::filesystem::remove(out / path);
        if (number % 4 == 1 && !bytes.empty()) write_file(out / path, bytes.substr(0, bytes.size() / 2));
        if (number % 4 == 2 && bytes.size() > kPageBytes) {
          std::string flipped = bytes;
          flipped[kPageBytes + operation % (bytes.size() - kPageBytes)] ^= 1;
          write_file(out / path, flipped);
        }
        ++number;
      }
      if (!left.contains("manifest.json")) {
        const auto outcome = repair_begun(source, out, recipe, format::posix_file_system());
        REQUIRE_MESSAGE(outcome.has_value(), outcome.error().message);
        repaired += outcome->damaged_files;
        REQUIRE(test::tree(out) == whole);
      }
    }
    CHECK(repaired > 10);
    CHECK(begun > 10);
    std::filesystem::remove_all(target.path() / "out");
    std::filesystem::remove_all(target.path() / "whole");
  }
}

TEST_CASE("repair: while a file of an unfinished repository is mended, no digest of files is gone on with") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  const format::Path out = target.path() / "out";
  const format::Path journal = out / ".reshard" / "journal";
  test::FaultyFileSystem breaking(format::posix_file_system());
  std::map<std::string, std::string> left;
  std::string lost;
  for (uint64_t operation = 40; lost.empty(); ++operation) {
    std::filesystem::remove_all(out);
    breaking.fail_from(breaking.operations() + operation);
    REQUIRE_FALSE(pack(source, out, kRecipes[1], breaking).has_value());
    left = std::filesystem::exists(journal) ? test::tree(out) : std::map<std::string, std::string>();
    const auto part = std::ranges::find_if(left, [](const auto& file) { return file.first.ends_with(".safetensors"); });
    const bool is_recorded = part != left.end() && left.at(".reshard/journal").find("\"shard\"") != std::string::npos;
    if (is_recorded && part->first.starts_with(".reshard/part/")) lost = part->first;
  }
  const std::vector<reshard::FileBegun> hashes{{.file = 0, .hash = format::Sha256().state()}};
  const reshard::ShardBegun forgets_none{.shard = 0, .at = 0};
  left[".reshard/journal"] += reshard::journal_line(forgets_none, hashes);
  size_t mended = 0;
  bool is_repaired = false;
  for (uint64_t operation = 0; !is_repaired; ++operation) {
    CAPTURE(operation);
    std::filesystem::remove_all(out);
    for (const auto& [path, bytes] : left) {
      if (path == lost) continue;
      std::filesystem::create_directories((out / path).parent_path());
      write_file(out / path, bytes);
    }
    test::FaultyFileSystem failing(format::posix_file_system());
    failing.fail_from(operation);
    is_repaired = repair_begun(source, out, kRecipes[1], failing).has_value();
    if (is_repaired || !std::filesystem::exists(out / lost)) continue;
    ++mended;
    CHECK(test::tree(out).at(".reshard/journal").find("hashes") == std::string::npos);
  }
  CHECK(mended > 3);
}

TEST_CASE("repair: too little disk and too few inodes are refused before anything is changed") {
  const TempFolder source;
  const TempFolder target;
  SmallCheckpoint().write(source);
  const format::Path out = target.path() / "out";
  REQUIRE(pack(source, out, kRecipes[0], format::posix_file_system()).has_value());
  damage(out, test::tree(out));
  const auto damaged = test::tree(out);
  const auto without_lock = [&] {
    auto files = test::tree(out);
    files.erase(".reshard/lock");
    return files;
  };
  test::FaultyFileSystem little(format::posix_file_system());
  little.set_free_bytes(100);
  CHECK(repair(source, out, little).error().kind == ErrorKind::budget);
  CHECK(without_lock() == damaged);
  test::FaultyFileSystem few(format::posix_file_system());
  few.set_free_files(3);
  CHECK(repair(source, out, few).error().message.find("inodes") != std::string::npos);
  CHECK(without_lock() == damaged);
}

}  // namespace dspack::repair_test
