#include <doctest/doctest.h>

#include "format/hub/listing.h"
#include "format/hub/name.h"
#include "format/hub/refusal.h"
#include "format/hub/snapshot.h"
#include "format/source/repository.h"
#include "tests/support/temp_folder.h"

namespace dspack::hub_test {

using namespace dspack;
using format::HttpFailure;
using format::HubFile;
using format::ListedFile;

namespace {

const std::string kCommit(40, 'a');

std::string explained(const HttpFailure& failure, bool has_token, const std::string& revision = "main") {
  const Error error = format::explain_refusal(
      {.endpoint = "https://hub", .repository = "org/name", .revision = revision, .has_token = has_token}, failure);
  CHECK(error.kind == ErrorKind::network);
  CHECK(error.message.starts_with("https://hub/org/name: "));
  return error.message;
}

HttpFailure refusal(long status, std::string code, std::string words = {}) {
  return {.error = {ErrorKind::network, "plain"},
          .status = status,
          .error_code = std::move(code),
          .words = std::move(words)};
}

bool holds(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::vector<HubFile> page(std::string_view text) {
  std::vector<HubFile> files;
  const auto parsed = format::parse_tree_page(text, files);
  REQUIRE_MESSAGE(parsed.has_value(), parsed.error().message);
  return files;
}

}  // namespace

TEST_CASE("hub name: repository and revision, which must stay where they are put") {
  CHECK(format::parse_hub_name("org/name")->revision == "main");
  CHECK(format::parse_hub_name("org/name@refs/pr/7")->revision == "refs/pr/7");
  CHECK(format::parse_hub_name("a-b/c.d_e@v1")->repository == "a-b/c.d_e");
  for (const char* text :
       {"", "org", "org/", "/name", "org/name/x", "../name", "org/..", "org/name@", "o rg/name", "org/name@../../etc",
        ".org/name", "org/.name", "org/name@.a", "org/name@a//b", "org/name@/etc", "org/name@a\\b", "org/name@a\nb"}) {
    CAPTURE(text);
    CHECK_FALSE(format::parse_hub_name(text).has_value());
  }
  CHECK_FALSE(format::parse_hub_name("org/name@" + std::string(300, 'x')).has_value());
}

TEST_CASE("hub name: as people paste it") {
  const auto pasted = [](std::string_view text) {
    const auto name = format::pasted_hub_name(text, "http://mirror:8");
    return name ? name->repository + "@" + name->revision : std::string();
  };
  for (const char* text : {"https://huggingface.co/org/name",
                           "https://huggingface.co/org/name/",
                           "http://huggingface.co/org/name",
                           "HTTPS://HuggingFace.co/org/name",
                           "https://www.huggingface.co/org/name",
                           "https://hf.co/org/name",
                           "huggingface.co/org/name",
                           "hf.co/org/name/",
                           "https://huggingface.co/org/name/tree/main",
                           "https://huggingface.co/org/name/tree/main/",
                           "https://huggingface.co/org/name?library=transformers#usage",
                           "https://huggingface.co/org/name/blob/main/config.json",
                           "https://huggingface.co/org/name/resolve/main/a/b",
                           "https://huggingface.co/org/name/blob/main/a/b.json?download=true",
                           "http://mirror:8/org/name",
                           "http://mirror:8/org/name/tree/main",
                           "hf://org/name",
                           "hf://org/name/",
                           "hf://models/org/name",
                           "HF://org/name",
                           "https://huggingface.co/org/name/resolve/main",
                           "https://huggingface.co/org/name/raw/main/README.md"})
    CHECK_MESSAGE(pasted(text) == "org/name@main", text);
  CHECK(pasted("https://huggingface.co/org/name/tree/v1.0") == "org/name@v1.0");
  CHECK(pasted("https://huggingface.co/org/name/commit/" + kCommit) == "org/name@" + kCommit);
  CHECK(pasted("https://huggingface.co/org/name/tree/refs%2Fpr%2F7") == "org/name@refs/pr/7");
  CHECK(pasted("https://huggingface.co/org/name/tree/refs/pr/7") == "org/name@refs/pr/7");
  CHECK(pasted("https://huggingface.co/org/name/blob/refs/pr/7/config.json") == "org/name@refs/pr/7");
  CHECK(pasted("https://huggingface.co/org/name@v2") == "org/name@v2");
  CHECK(pasted("hf://models/name") == "models/name@main");
  CHECK(pasted("hf://org/name@v2") == "org/name@v2");
  for (const char* text : {"",
                           "org/name",
                           "huggingface.co",
                           "https://huggingface.co/",
                           "https://huggingface.co/org",
                           "https://huggingface.co/datasets/org/name",
                           "https://huggingface.co/org/name/tree/main/folder",
                           "https://huggingface.co/org/name/tree",
                           "https://huggingface.co/org/name/tree/",
                           "https://huggingface.co.evil/o/n",
                           "https://huggingface.co/org/name/discussions/3",
                           "https://huggingface.co/org/name/blob/../x",
                           "https://huggingface.co/org/name/tree/%2e%2e%2fx",
                           "https://huggingface.co/org/name/tree/%2",
                           "https://huggingface.co/org/name/tree/%0a",
                           "https://huggingface.co/org/..",
                           "http://mirror:80/org/name",
                           "http://mirror/org/name",
                           "hf://",
                           "hf://models/",
                           "hf://org/name/x",
                           "ftp://hf.co/o/n"})
    CHECK_MESSAGE(pasted(text).empty(), text);
  CHECK_FALSE(format::pasted_hub_name("http://mirror:8/org/name", "").has_value());
  CHECK(format::is_hub_address("https://huggingface.co/datasets/o/n"));
  CHECK_FALSE(format::is_hub_address("https://huggingface.co.evil/o/n"));
}

TEST_CASE("hub name: addresses at the official host are meant for the endpoint") {
  using format::at_endpoint;
  CHECK(at_endpoint("https://huggingface.co/api/x?a=1", "http://mirror:8") == "http://mirror:8/api/x?a=1");
  CHECK(at_endpoint("https://huggingface.co/api/x", "https://huggingface.co") == "https://huggingface.co/api/x");
  CHECK(at_endpoint("https://huggingface.co.evil.org/x", "http://m") == "https://huggingface.co.evil.org/x");
  CHECK(at_endpoint("https://s3/x?u=https://huggingface.co/y", "http://m") ==
        "https://s3/x?u=https://huggingface.co/y");
}

TEST_CASE("hub name: what is a commit, and what could be one") {
  CHECK(format::is_commit(kCommit));
  CHECK(format::is_commit(std::string(64, '0')));
  for (const std::string& text :
       {std::string(41, 'a'), std::string(39, 'a'), std::string(40, 'A'), std::string("main")}) {
    CAPTURE(text);
    CHECK_FALSE(format::is_commit(text));
  }
  CHECK(format::is_commit_id("0123abc"));
  CHECK_FALSE(format::is_commit_id("0123ab"));
  CHECK_FALSE(format::is_commit_id("../../../x"));
}

TEST_CASE("hub name: addresses") {
  const format::HubName name{"org/name", "refs/pr/1"};
  CHECK(format::hub_file_url("https://hub", name, "a b/c.json") ==
        "https://hub/org/name/resolve/refs%2Fpr%2F1/a%20b/c.json");
  CHECK(format::hub_api_url("https://hub", name, "tree") == "https://hub/api/models/org/name/tree/refs%2Fpr%2F1");
  CHECK(format::repository_of_url("https://hub", "https://hub/new/name2/resolve/main/x") == "new/name2");
  CHECK(format::repository_of_url("https://hub", "https://hub/resolve/resolve/resolve/main/x") == "resolve/resolve");
  for (const char* url : {"https://hub/api/resolve-cache/models/o/n/c/x", "https://hub.evil/o/n/resolve/main/x",
                          "https://hub/a/b/c/resolve/main/x", "https://hub/../n/resolve/main/x",
                          "https://hub/o/.n/resolve/main/x", "https://hub/resolve/"}) {
    CAPTURE(url);
    CHECK_FALSE(format::repository_of_url("https://hub", url).has_value());
  }
}

TEST_CASE("hub refusal: each says what it is and what to do") {
  const std::string gated = explained(refusal(401, "GatedRepo", "Access is restricted"), false);
  for (const char* part : {"gated", "open https://hub/org/name", "accept its terms", "HF_TOKEN", "hf auth login",
                           "(HTTP 401: Access is restricted)"})
    CHECK_MESSAGE(holds(gated, part), gated);
  CHECK(holds(explained(refusal(403, "GatedRepo"), true), "the account of your token has no access yet"));
  CHECK(holds(explained(refusal(401, "RepoNotFound"), false), "no such repository on https://hub, or it is private"));
  CHECK(holds(explained(refusal(404, "RepoNotFound"), true), "your token may not read it"));
  CHECK(holds(explained(refusal(404, "RevisionNotFound"), true, "v9"), "no branch, tag or commit \"v9\""));
  CHECK(holds(explained(refusal(404, "RevisionNotFound"), true, kCommit), "has no commit " + kCommit));
  CHECK(
      holds(explained(refusal(401, "", "Invalid credentials in Authorization header"), true), "wrong or has expired"));
  CHECK(holds(explained(refusal(401, "RepoNotFound", "Invalid credentials in Authorization header"), true),
              "wrong or has expired"));
  CHECK(holds(explained(refusal(401, ""), false), "private or gated"));
  CHECK(holds(explained(refusal(403, ""), true), "fine-grained"));
}

TEST_CASE("hub refusal: a password in the endpoint is not shown") {
  const format::HubRequest asked{.endpoint = "https://u:s3cr3t@hub", .repository = "o/n", .revision = "main"};
  for (const char* code : {"", "GatedRepo", "RepoNotFound", "RevisionNotFound"}) {
    const std::string text = format::explain_refusal(asked, refusal(401, code)).message;
    CHECK_MESSAGE(holds(text, "https://hub/o/n"), text);
    CHECK_MESSAGE(!holds(text, "s3cr3t"), text);
  }
}

TEST_CASE("hub refusal: a missing file and a refused link are no verdict on the repository") {
  HttpFailure missing = refusal(404, "EntryNotFound");
  missing.error = {ErrorKind::not_found, "not found"};
  const format::HubRequest asked{.endpoint = "https://hub", .repository = "o/n", .revision = "main"};
  CHECK(format::explain_refusal(asked, missing).kind == ErrorKind::not_found);
  HttpFailure link = refusal(403, "");
  link.link_expired = true;
  CHECK(format::explain_refusal(asked, link).message == "plain");
}

TEST_CASE("hub listing: small files have git's name, large ones a SHA-256; folders are passed over") {
  const std::string blob(40, 'c');
  const std::string entry = R"("type":"file","oid":")" + blob + R"(","path":)";
  const auto files =
      page(R"([{"type":"directory","path":"a","size":0,"oid":"x"},{)" + entry +
           R"("a/w.safetensors","size":12,"lfs":{"oid":")" + std::string(64, 'b') +
           R"(","size":12,"pointerSize":130},"xetHash":"z"},{)" + entry + R"(".gitattributes","size":3},{)" + entry +
           R"("a/.x/y","size":3},{)" + entry + R"("config.json","size":5},
    {"type":"file","path":"untold","size":1}])");
  REQUIRE(files.size() == 5);
  CHECK(files[0].path == "a/w.safetensors");
  CHECK(files[0].size_bytes == 12);
  CHECK(format::to_hex(files[0].sha256.value()) == std::string(64, 'b'));
  CHECK(files[0].blob.empty());
  CHECK_FALSE(files[3].sha256.has_value());
  CHECK(files[3].blob == blob);
  CHECK(files[4].blob.empty());
  const std::vector<ListedFile> visible = format::visible_files(files);
  REQUIRE(visible.size() == 3);
  CHECK(format::find_listed(visible, "config.json")->size_bytes == 5);
  CHECK(format::find_listed(visible, "b") == nullptr);
}

TEST_CASE("hub listing: what contradicts itself is refused") {
  for (const char* text :
       {"", "{}", "[1]", R"([{"path":"a","size":1}])", R"([{"type":"file","size":1}])",
        R"([{"type":"file","path":"a"}])", R"([{"type":"file","path":"a","size":-1}])",
        R"([{"type":"file","path":"../a","size":1}])", R"([{"type":"file","path":"/a","size":1}])",
        R"([{"type":"file","path":1,"size":1}])", R"([{"type":"file","path":"a","size":1e9}])",
        R"([{"type":"file","path":"a","size":1,"oid":"not hex here"}])",
        R"([{"type":"file","path":"a","size":1,"oid":7}])", R"([{"type":"file","path":"a","size":1,"lfs":1}])",
        R"([{"type":"file","path":"a","size":1,"lfs":{"oid":"abc","size":1}}])"}) {
    CAPTURE(text);
    std::vector<HubFile> files;
    CHECK_FALSE(format::parse_tree_page(text, files).has_value());
  }
  std::vector<HubFile> files;
  const std::string two_sizes =
      R"([{"type":"file","path":"a","size":1,"lfs":{"oid":")" + std::string(64, 'b') + R"(","size":2}}])";
  CHECK_FALSE(format::parse_tree_page(two_sizes, files).has_value());
  std::vector<HubFile> twice{{{.path = "b"}, {}}, {{.path = "a"}, {}}, {{.path = "b"}, {}}};
  CHECK_FALSE(format::sort_listing(twice).has_value());
  std::vector<HubFile> once{{{.path = "b"}, {}}, {{.path = "a"}, {}}};
  CHECK(format::sort_listing(once).has_value());
  CHECK(once.front().path == "a");
}

TEST_CASE("hub commits: what a name meant is remembered, and nothing else is believed") {
  format::FileSystem& files = format::posix_file_system();
  const test::TempFolder folder;
  const format::HubName name{"org/name", "refs/pr/1"};
  CHECK_FALSE(format::remembered_commit(folder.path(), name, files).has_value());
  CHECK(format::remember_commit(folder.path(), name, {"new/name", kCommit}, files).has_value());
  const auto kept = format::remembered_commit(folder.path(), name, files);
  REQUIRE(kept.has_value());
  CHECK(kept->repository == "new/name");
  CHECK(kept->commit == kCommit);
  CHECK_FALSE(format::remembered_commit(folder.path(), {"org/name", "refs"}, files).has_value());
  CHECK(format::remember_commit("", name, {"new/name", kCommit}, files).has_value());
  for (const std::string& text : {std::string(), kCommit, kCommit + " org/name", kCommit + "\n",
                                  std::string("main org/name\n"), kCommit + " org/name@x\n", kCommit + " ../..\n"}) {
    CAPTURE(text);
    folder.write("org--name/v1", text);
    CHECK_FALSE(format::remembered_commit(folder.path(), {"org/name", "v1"}, files).has_value());
  }
}

TEST_CASE("hub: a commit is opened without a request, and named in every address") {
  const std::string place = "org/name@" + kCommit;
  format::RemoteOptions options;
  options.hub_endpoint = "http://u:s3cr3t@127.0.0.1:9/";
  const auto repository = format::open_repository(place, options, format::posix_file_system()).value();
  CHECK(repository->kind() == format::RepositoryKind::hub);
  CHECK_FALSE(repository->is_local());
  CHECK(repository->locate("a.json") == "http://127.0.0.1:9/org/name/resolve/" + kCommit + "/a.json");
  CHECK(repository->description() == place);
  CHECK(repository->hub_origin()->commit == kCommit);
}

TEST_CASE("hub: pinned work goes on at its commit, whatever the name means by now") {
  format::RemoteOptions options;
  options.hub_endpoint = "http://127.0.0.1:9";
  options.hub_pinned = format::HubOrigin{.repository = "new/name", .commit = kCommit, .asked = "org/name@main"};
  const auto repository = format::open_repository("hf://org/name", options, format::posix_file_system()).value();
  CHECK(repository->locate("x") == "http://127.0.0.1:9/new/name/resolve/" + kCommit + "/x");
  CHECK(repository->description() == "org/name@main (commit aaaaaaaaaaaa)");
}

}  // namespace dspack::hub_test
