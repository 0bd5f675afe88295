#include <doctest/doctest.h>

#include "format/hub/snapshot.h"
#include "format/source/repository.h"
#include "tests/support/temp_folder.h"

namespace dspack::hub_snapshot_test {

using namespace dspack;
using format::HubSnapshot;
using format::Path;

namespace {

const std::string kCommit(40, 'c');
const std::string kDigest(64, 'd');
constexpr char kIndex[] = R"({"metadata":{},"weight_map":{"t":"one.safetensors","u":"two.safetensors"}})";

/// A cache with one repository, laid out as huggingface_hub does.
struct Cache {
  test::TempFolder folder;

  [[nodiscard]] Path repository() const { return folder.path() / "models--org--name"; }
  [[nodiscard]] Path snapshot() const { return repository() / "snapshots" / kCommit; }

  void add(const std::string& path, const std::string& etag, const std::string& text) const {
    folder.write("models--org--name/blobs/" + etag, text);
    std::filesystem::create_directories((snapshot() / path).parent_path());
    std::filesystem::create_symlink(
        std::filesystem::relative(repository() / "blobs" / etag, (snapshot() / path).parent_path()), snapshot() / path);
  }
  [[nodiscard]] std::optional<HubSnapshot> find() const {
    return HubSnapshot::find(folder.path(), {"org/name", kCommit}, format::posix_file_system());
  }
  [[nodiscard]] format::RemoteOptions options() const {
    format::RemoteOptions options;
    options.hub_endpoint = "http://127.0.0.1:9";
    options.hub_cache = folder.path();
    options.hub_offline = true;
    return options;
  }
};

Result<std::unique_ptr<format::Repository>> open(const Cache& cache, std::string_view place) {
  return format::open_repository(place, cache.options(), format::posix_file_system());
}

}  // namespace

TEST_CASE("hub snapshot: files lie behind links, whose blobs are named by their digests") {
  const Cache cache;
  CHECK_FALSE(cache.find().has_value());
  cache.add("sub/one.safetensors", kDigest, "weights");
  const auto snapshot = cache.find();
  REQUIRE(snapshot.has_value());
  const auto file = snapshot->file("sub/one.safetensors");
  REQUIRE(file.has_value());
  CHECK(file->etag == kDigest);
  CHECK(file->path.filename() == kDigest);
  CHECK_FALSE(snapshot->file("sub").has_value());
  CHECK_FALSE(snapshot->file("other").has_value());
  cache.folder.write("models--org--name/snapshots/" + kCommit + "/plain.json", "{}");  // where links are not to be had
  CHECK(snapshot->file("plain.json")->etag.empty());
}

TEST_CASE("hub snapshot: files in the store that repositories share, under the name that the repository's link has") {
  const Cache cache;
  const std::string hash(64, 'a');
  const Path blobs = cache.repository() / "blobs";
  cache.add("good", "e1", "x");
  cache.folder.write("blobs/aa/" + hash, "weights");
  const auto share = [&](const std::string& path, const std::string& etag, const Path& target) {
    std::filesystem::create_symlink(target, blobs / etag);
    std::filesystem::create_directories((cache.snapshot() / path).parent_path());
    std::filesystem::create_symlink(std::filesystem::relative(blobs, (cache.snapshot() / path).parent_path()) / etag,
                                    cache.snapshot() / path);
  };
  share("sub/shared", kDigest, "../../blobs/aa/" + hash);
  share("absolute", std::string(64, 'b'), cache.folder.path() / "blobs/aa" / hash);
  const auto snapshot = cache.find();
  for (const auto& [path, etag] : {std::pair("sub/shared", kDigest), std::pair("absolute", std::string(64, 'b'))}) {
    const auto file = snapshot->file(path);
    REQUIRE_MESSAGE(file.has_value(), path);
    CHECK(file->etag == etag);
    CHECK(format::read_text(format::posix_file_system(), file->path, 100).value() == "weights");
  }

  // Nothing else that lies there, and no other way to it.
  cache.folder.write("blobs/aa/" + std::string(64, 'A'), "s");
  cache.folder.write("blobs/aa/" + hash + ".refs", "s");
  cache.folder.write("blobs/ab/" + hash, "s");
  cache.folder.write("blobs/secret", "s");
  cache.folder.write("elsewhere/aa/" + hash, "s");
  cache.folder.write("blobs/ac/ac" + std::string(62, '0'), "s");
  std::filesystem::create_directories(cache.folder.path() / "blobs/cc");
  std::filesystem::create_symlink("/etc/passwd", cache.folder.path() / "blobs/cc" / std::string(64, 'c'));
  share("upper", "e2", "../../blobs/aa/" + std::string(64, 'A'));
  share("refs", "e3", "../../blobs/aa/" + hash + ".refs");
  share("prefix", "e4", "../../blobs/ab/" + hash);
  share("top", "e5", "../../blobs/secret");
  share("beside", "e6", "../../elsewhere/aa/" + hash);
  share("onward", "e7", "../../blobs/cc/" + std::string(64, 'c'));
  share("dangling", "e8", "../../blobs/dd/" + std::string(64, 'd'));
  std::filesystem::create_symlink("../../../blobs/ac/ac" + std::string(62, '0'), cache.snapshot() / "direct");
  for (const char* path : {"upper", "refs", "prefix", "top", "beside", "onward", "dangling", "direct"})
    CHECK_FALSE_MESSAGE(snapshot->file(path).has_value(), path);
}

TEST_CASE("hub snapshot: what leads out of the repository's folder, or to no file, is not there") {
  const Cache cache;
  cache.add("good", kDigest, "x");
  cache.folder.write("secret", "s");
  cache.folder.write("models--org--name-2/secret", "s");
  const auto link = [&](const std::string& name, const Path& target) {
    std::filesystem::create_symlink(target, cache.snapshot() / name);
  };
  link("absolute", "/etc/passwd");
  link("above", "../../../secret");
  link("beside", "../../../models--org--name-2/secret");
  link("folder", "../..");
  link("dangling", "../../blobs/none");
  link("loop", "loop");
  const auto snapshot = cache.find();
  REQUIRE(snapshot.has_value());
  for (const char* path : {"absolute", "above", "beside", "folder", "dangling", "loop", "", "..", "../../../secret",
                           "/etc/passwd", "good/../good"}) {
    CAPTURE(path);
    CHECK_FALSE(snapshot->file(path).has_value());
  }
  CHECK(snapshot->file("good").has_value());
}

TEST_CASE("hub snapshot: a cache that is itself behind a link is as good") {
  const Cache cache;
  cache.add("good", kDigest, "x");
  const test::TempFolder other;
  std::filesystem::create_directory_symlink(cache.folder.path(), other.path() / "hub");
  const auto snapshot = HubSnapshot::find(other.path() / "hub", {"org/name", kCommit}, format::posix_file_system());
  REQUIRE(snapshot.has_value());
  CHECK(snapshot->file("good").has_value());
}

TEST_CASE("hub snapshot: whether it has all weights") {
  const Cache cache;
  cache.add("config.json", "e1", "{}");
  CHECK_FALSE(cache.find()->weights().are_whole());
  cache.add("model.safetensors.index.json", "e2", kIndex);
  cache.add("one.safetensors", kDigest, "1");
  CHECK(cache.find()->weights().missing == std::vector<std::string>{"two.safetensors"});
  CHECK(cache.find()->weights().files == 2);
  cache.add("two.safetensors", std::string(64, 'e'), "2");
  CHECK(cache.find()->weights().are_whole());
  cache.add("manifest.json", "e3", "damaged");
  CHECK_FALSE(cache.find()->weights().are_whole());
}

TEST_CASE("hub snapshot: a name means the commit of its ref; a ref that is none is passed over") {
  const Cache cache;
  format::FileSystem& files = format::posix_file_system();
  const format::HubName name{"org/name", "refs/pr/1"};
  CHECK_FALSE(cached_commit(cache.folder.path(), name, files).has_value());
  cache.folder.write("models--org--name/refs/refs/pr/1", kCommit);
  CHECK(cached_commit(cache.folder.path(), name, files) == kCommit);
  cache.folder.write("models--org--name/refs/refs/pr/1", kCommit + "\n");
  CHECK(cached_commit(cache.folder.path(), name, files) == kCommit);
  for (const std::string& text : {std::string("main"), std::string("../../x"), std::string(5000, 'a'), std::string()}) {
    cache.folder.write("models--org--name/refs/refs/pr/1", text);
    CHECK_FALSE(cached_commit(cache.folder.path(), name, files).has_value());
  }
  CHECK_FALSE(cached_commit(cache.folder.path(), {"org/name", "../../../secret"}, files).has_value());
  CHECK_FALSE(cached_commit("", name, files).has_value());
}

TEST_CASE("hub snapshot: offline, a whole one is read like a folder, with the digests that its blobs are named by") {
  const Cache cache;
  cache.folder.write("models--org--name/refs/main", kCommit);
  cache.add("model.safetensors", kDigest, "weights");
  cache.add("config.json", "e1", "{}");
  std::filesystem::create_symlink("/etc/passwd", cache.snapshot() / "evil");
  const auto repository = open(cache, "org/name").value();
  CHECK(repository->is_local());
  CHECK(repository->kind() == format::RepositoryKind::hub);
  CHECK(repository->hub_origin()->commit == kCommit);
  CHECK(repository->read_text("config.json", 100, {}).value() == "{}");
  CHECK(repository->read_text("manifest.json", 100, {}).error().kind == ErrorKind::not_found);
  CHECK(repository->open("model.safetensors", {}).value()->version() == kDigest);
  CHECK(repository->open_file("model.safetensors", format::ReadMode::buffered).value()->size_bytes() == 7);
  CHECK(format::to_hex(repository->declared("model.safetensors", {}).value()->sha256) == kDigest);
  CHECK_FALSE(repository->declared("config.json", {}).value().has_value());
  const auto listed = repository->list({}).value().value();
  REQUIRE(listed.size() == 2);
  CHECK(listed[0].path == "config.json");
  CHECK(listed[1].sha256.has_value());
}

TEST_CASE("hub snapshot: offline, what is missing is named with the cache and the remedy, and is no absent file") {
  const Cache cache;
  const auto unknown = open(cache, "org/name");
  REQUIRE_FALSE(unknown.has_value());
  for (const char* part : {"org/name@main", "HF_HUB_OFFLINE", "models--org--name", "hf download org/name"})
    CHECK_MESSAGE(unknown.error().message.find(part) != std::string::npos, unknown.error().message);
  cache.add("model.safetensors.index.json", "e2", kIndex);
  cache.add("one.safetensors", kDigest, "1");
  const auto repository = open(cache, "org/name@" + kCommit).value();
  CHECK_FALSE(repository->is_local());
  const auto missing = repository->open("two.safetensors", {});
  REQUIRE_FALSE(missing.has_value());
  CHECK(missing.error().kind == ErrorKind::network);
  for (const std::string& part : {std::string("two.safetensors"), cache.snapshot().string(),
                                  std::string("HF_HUB_OFFLINE"), "hf download org/name --revision " + kCommit})
    CHECK_MESSAGE(missing.error().message.find(part) != std::string::npos, missing.error().message);
  CHECK(repository->read_text("manifest.json", 100, {}).error().kind == ErrorKind::network);
}

}  // namespace dspack::hub_snapshot_test
