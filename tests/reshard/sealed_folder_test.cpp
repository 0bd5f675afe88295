#include <doctest/doctest.h>

#include <filesystem>

#include "format/manifest.h"
#include "reshard/publish/publish_plan.h"
#include "reshard/run/repack.h"
#include "tests/support/small_checkpoint.h"
#include "tests/support/temp_folder.h"

namespace dspack::sealed_folder_test {

using namespace dspack;
using reshard::SealedFolder;
using test::TempFolder;

namespace {

struct Packed {
  TempFolder source;
  TempFolder parent;
  format::Path folder = parent.path() / "packed";

  Packed() {
    test::SmallCheckpoint().write(source);
    const auto repository = open_repository(source.path().string(), {}, format::posix_file_system()).value();
    const reshard::RepackOptions options{.recipe = reshard::Recipe{}, .out = folder, .jobs = 2};
    const reshard::RepackOutlook outlook = reshard::prepare_repack(*repository, options, {}).value();
    format::SilentProgress progress;
    REQUIRE(reshard::repack(outlook, *repository, options, format::posix_file_system(), progress, {}).has_value());
  }

  [[nodiscard]] Result<SealedFolder> open() const {
    return reshard::open_sealed(folder, format::posix_file_system(), {});
  }
  [[nodiscard]] Result<void> check() const {
    TRY_ASSIGN(const SealedFolder sealed, open());
    format::SilentProgress progress;
    return reshard::check_digests(sealed, format::posix_file_system(), 3, progress, {});
  }
  void write(const std::string& name, const std::string& bytes) const { parent.write("packed/" + name, bytes); }
};

void check_refused(const Result<void>& outcome, ErrorKind kind, const std::string& needle) {
  REQUIRE_FALSE(outcome.has_value());
  CAPTURE(outcome.error().message);
  CHECK(outcome.error().kind == kind);
  CHECK(outcome.error().message.find(needle) != std::string::npos);
}

}  // namespace

TEST_CASE("sealed folder: every file is listed, and fits its digest") {
  const Packed packed;
  SealedFolder sealed = packed.open().value();
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(packed.folder))
    bytes += entry.is_regular_file() ? entry.file_size() : 0;
  CHECK(sealed.total_bytes == bytes);
  CHECK(packed.check().has_value());
  packed.write(".gitattributes", "x");  // the Hub's own, of a folder that was downloaded
  CHECK(packed.check().has_value());
}

TEST_CASE("sealed folder: what is changed, missing, extra or unfinished is named") {
  {
    const Packed packed;
    std::string text = packed.parent.read("packed/config.json");
    text[0] ^= 1;
    packed.write("config.json", text);
    check_refused(packed.check(), ErrorKind::corrupt, "config.json differs from its digest");
    packed.write("config.json", text + " ");
    check_refused(packed.check(), ErrorKind::corrupt, "config.json has ");
    std::filesystem::remove(packed.folder / "config.json");
    check_refused(packed.check(), ErrorKind::corrupt, "config.json is missing");
  }
  const Packed packed;
  packed.write("notes.txt", "x");
  check_refused(packed.check(), ErrorKind::corrupt, "notes.txt was not sealed");
  std::filesystem::remove(packed.folder / "notes.txt");
  std::filesystem::create_directory(packed.folder / ".reshard");
  check_refused(packed.check(), ErrorKind::conflict, "unfinished");
  std::filesystem::remove(packed.folder / ".reshard");
  CHECK(packed.check().has_value());
  std::filesystem::remove(packed.folder / "manifest.json");
  check_refused(packed.check(), ErrorKind::conflict, "not a packed repository");
  packed.write("manifest.json", "{}");
  CHECK_FALSE(packed.check().has_value());
}

TEST_CASE("sealed folder: git's names are computed where the server has a small file of that size") {
  const Packed packed;
  SealedFolder sealed = packed.open().value();
  format::HubTree tree;
  for (const reshard::LocalFile& file : sealed.files)
    tree[file.path] =
        format::HubFile{{file.path, file.size_bytes + (file.path == "README.md" ? 1 : 0), {}}, std::string(40, '0')};
  tree.erase("manifest.json");
  REQUIRE(name_blobs(sealed, tree, format::posix_file_system(), 2, {}).has_value());
  for (const reshard::LocalFile& file : sealed.files)
    CHECK(file.blob.empty() == (file.path == "README.md" || file.path == "manifest.json"));
  for (reshard::LocalFile& file : sealed.files)
    tree[file.path].blob = file.blob;
  CHECK(compare(sealed.files, tree).to_send.size() == 2);
}

}  // namespace dspack::sealed_folder_test
