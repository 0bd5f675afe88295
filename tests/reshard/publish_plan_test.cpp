#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>

#include <fmt/format.h>

#include "format/http/content_digest.h"
#include "format/json.h"
#include "format/manifest.h"
#include "reshard/publish/send_files.h"
#include "tests/support/temp_folder.h"

namespace dspack::publish_plan_test {

using namespace dspack;
using format::HubFile;
using format::HubTree;
using reshard::CommitLimits;
using reshard::LocalFile;
using reshard::PendingFile;
using reshard::PlannedCommit;

namespace {

LocalFile local_file(const std::string& path, const std::string& content) {
  format::ContentHash blob = format::git_blob_hash(content.size());
  blob.update(format::as_bytes(content));
  return {path, content.size(), format::sha256(content), blob.finish_hex()};
}

/// `weights` files of weights, and the others that a packed repository has; by path.
std::vector<LocalFile> folder_of(size_t weights) {
  std::vector<LocalFile> files;
  for (const char* name : {"README.md", "config.json", "manifest.json", "model.safetensors.index.json"})
    files.push_back(local_file(name, name));
  for (size_t i = 0; i < weights; ++i)
    files.push_back(local_file(fmt::format("model/layers/{:03}.safetensors", i), std::to_string(i)));
  std::ranges::sort(files, {}, &LocalFile::path);
  return files;
}

std::vector<PendingFile> all_of(const std::vector<LocalFile>& files) {
  std::vector<PendingFile> pending;
  for (size_t i = 0; i < files.size(); ++i)
    pending.push_back({i, files[i].path.ends_with(".safetensors")});
  return pending;
}

/// Carries commits out.
void apply(const std::vector<PlannedCommit>& commits, const std::vector<LocalFile>& files, HubTree& tree) {
  for (const PlannedCommit& commit : commits) {
    for (const std::string& path : commit.deleted)
      REQUIRE(tree.erase(path) == 1);  // the Hub refuses to delete what is not there
    for (const PendingFile& pending : commit.files) {
      const LocalFile& file = files[pending.file];
      HubFile& there = tree[file.path];
      there = pending.large ? HubFile{{file.path, file.size_bytes, file.sha256}, ""}
                            : HubFile{{file.path, file.size_bytes, {}}, file.blob};
    }
  }
}

HubTree tree_of(const std::vector<LocalFile>& files) {
  HubTree tree;
  apply({{.files = all_of(files), .deleted = {}, .seals = true}}, files, tree);
  return tree;
}

}  // namespace

TEST_CASE("publish plan: sizes, digests, missing and extra files are told apart; .gitattributes is the Hub's") {
  const std::vector<LocalFile> files = folder_of(3);
  HubTree tree = tree_of(files);
  tree[".gitattributes"] = HubFile{{".gitattributes", 10, {}}, std::string(40, '0')};
  CHECK(compare(files, tree).none());
  tree["model/layers/001.safetensors"].size_bytes = 7;
  tree["model/layers/002.safetensors"].sha256 = format::sha256("other");
  tree["config.json"].blob = std::string(40, '1');
  tree.erase("README.md");
  tree["a"] = tree["model/z"] = HubFile{{"", 1, {}}, std::string(40, '0')};
  const auto difference = compare(files, tree);
  CHECK(difference.extra == std::vector<std::string>{"a", "model/z"});
  CHECK(difference.findings ==
        std::vector<std::string>{
            "README.md: is missing there", "a: is there, and not in the folder", "config.json: has other content there",
            "model/layers/001.safetensors: has 7 bytes there, 1 here",
            "model/layers/002.safetensors: has another SHA-256 there", "model/z: is there, and not in the folder"});
  CHECK(difference.to_send.size() == 4);
  CHECK(compare(files, {}).to_send.size() == files.size());
}

TEST_CASE("publish plan: what fits goes in one commit, so that readers see all or nothing") {
  const std::vector<LocalFile> files = folder_of(96);
  const auto commits = plan_commits(files, all_of(files), {}, true);
  REQUIRE(commits.size() == 1);
  CHECK(commits[0].files.size() == 100);
  CHECK(commits[0].seals);
  CHECK(plan_commits(files, {}, {}, false).empty());
}

TEST_CASE("publish plan: manifest, index and card come in the last of several commits") {
  const std::vector<LocalFile> files = folder_of(197);
  const auto commits = plan_commits(files, all_of(files), {"model/old"}, false);
  REQUIRE(commits.size() == 3);
  for (size_t i = 0; i < commits.size(); ++i) {
    CHECK(commits[i].files.size() + commits[i].deleted.size() <= 100);
    CHECK(commits[i].seals == (i == 2));
    for (const PendingFile& pending : commits[i].files)
      CHECK(reshard::is_sealing(files[pending.file].path) == (i == 2));
  }
  CHECK(commits[0].deleted == std::vector<std::string>{"model/old"});
}

TEST_CASE("publish plan: content in commits is bounded, a file that is larger goes alone") {
  std::vector<LocalFile> files = folder_of(5);
  std::vector<PendingFile> pending = all_of(files);
  for (PendingFile& file : pending)
    file.large = false;
  for (LocalFile& file : files)
    file.size_bytes = file.path == "model/layers/002.safetensors" ? 100 : 4;
  const auto commits = plan_commits(files, pending, {}, false, CommitLimits{.operations = 100, .regular_bytes = 10});
  std::vector<size_t> sizes;
  for (const PlannedCommit& commit : commits)
    sizes.push_back(commit.files.size());
  CHECK(sizes == std::vector<size_t>{2, 1, 1, 2, 3});
}

TEST_CASE("publish plan: killed behind any commit, the rest leads to the folder, and never looks sealed on the way") {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const std::vector<LocalFile> files = folder_of(random() % 40);
    std::vector<LocalFile> old = folder_of(random() % 40);
    old.push_back(local_file("LICENSE.old", "x"));
    for (LocalFile& file : old) {
      if (random() % 2 == 0) file = local_file(file.path, "old " + file.path);
    }
    const bool was_sealed = random() % 2 == 0;
    HubTree tree;
    if (was_sealed) tree = tree_of(old);
    const CommitLimits limits{.operations = 1 + random() % 12, .regular_bytes = 1 + random() % 60};
    bool replaces = was_sealed;  // decided once: a branch that lost its manifest may hold old files of any name
    for (int run = 0; run < 1000; ++run) {
      const auto difference = compare(files, tree);
      if (difference.none()) break;
      CHECK((replaces || reshard::foreign(difference.extra).empty()));
      const bool sealed = tree.contains(format::kManifestPath);
      std::vector<PendingFile> pending;
      for (size_t i = 0; i < files.size(); ++i) {
        const bool differs = std::ranges::find(difference.to_send, i) != difference.to_send.end();
        if (differs || (sealed && files[i].path == format::kManifestPath))
          pending.push_back({i, files[i].path.ends_with(".safetensors")});
      }
      auto commits = plan_commits(files, pending, difference.extra, sealed, limits);
      if (run < 20) commits.resize(random() % (commits.size() + 1));  // killed
      for (const PlannedCommit& commit : commits) {
        apply({commit}, files, tree);
        const auto left = compare(files, tree);
        CHECK((!tree.contains(format::kManifestPath) || left.none()));
      }
      // What is deleted first are the names that nobody would know for ours later.
      if (!commits.empty()) replaces = false;
    }
    CHECK(compare(files, tree).none());
  }
}

TEST_CASE("commit body: a header and a line for each file; content that has changed is refused") {
  test::TempFolder folder;
  folder.write("config.json", "{}\n");
  const std::vector<LocalFile> files{local_file("config.json", "{}\n"), local_file("m.safetensors", "weights")};
  const reshard::SealedFolder sealed{.folder = folder.path(), .files = files, .manifest_sha256 = {}, .total_bytes = 10};
  const PlannedCommit commit{.files = {{0, false}, {1, true}}, .deleted = {"old \"name\""}, .seals = false};
  const auto body =
      commit_body({.summary = "s", .parent = "0123456"}, commit, sealed, format::posix_file_system()).value();
  std::vector<format::Json> lines;
  for (size_t at = 0; at < body.size(); at = body.find('\n', at) + 1)
    lines.push_back(format::parse_json(body.substr(at, body.find('\n', at) - at), format::kManifestDocument).value());
  REQUIRE(lines.size() == 4);
  CHECK(lines[0]["value"]["parentCommit"] == "0123456");
  CHECK(lines[1] == format::parse_json(R"({"key":"file","value":{"content":"e30K","encoding":"base64",)"
                                       R"("path":"config.json"}})",
                                       format::kManifestDocument)
                        .value());
  CHECK(lines[2]["key"] == "lfsFile");
  CHECK(lines[2]["value"]["oid"] == to_hex(files[1].sha256));
  CHECK(lines[2]["value"]["size"] == 7);
  CHECK(lines[3]["value"]["path"] == "old \"name\"");
  folder.write("config.json", "[]\n");
  const auto changed = commit_body({.summary = "s", .parent = {}}, commit, sealed, format::posix_file_system());
  REQUIRE_FALSE(changed.has_value());
  CHECK(changed.error().kind == ErrorKind::corrupt);
}

}  // namespace dspack::publish_plan_test
