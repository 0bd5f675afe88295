#include <doctest/doctest.h>

#include "format/http/answer.h"
#include "format/http/content_digest.h"
#include "format/http/headers.h"
#include "format/hub/client.h"

namespace dspack::hub_client_test {

using namespace dspack;
using format::HubClient;

namespace {

HubClient client(std::string endpoint) {
  format::RemoteOptions remote;
  remote.hub_endpoint = std::move(endpoint);
  remote.hub_token = "secret";
  return {remote, "me/ds"};
}

}  // namespace

TEST_CASE("hub client: names of repositories") {
  for (const char* good : {"me/ds", "hf://me/ds", "some-org/my.model_1", "A1/b"})
    CHECK(format::parse_repository_name(good).has_value());
  for (const char* pasted :
       {"hf://me/ds", "https://huggingface.co/me/ds", "hf.co/me/ds/", "https://hf.co/me/ds/tree/main"})
    CHECK(format::parse_repository_name(pasted).value() == "me/ds");
  CHECK_FALSE(format::parse_repository_name("https://huggingface.co/me/ds/tree/other").has_value());
  const std::string long_name = std::string("me/").append(97, 'a');
  for (const char* bad : {"", "ds", "/ds", "me/", "me/ds/x", "me/ds@main", "me/..", "me/a--b", "me/-a", "me/a.",
                          "me/a b", "me/a?b", "https://hub/me/ds", "../ds", long_name.c_str()}) {
    CAPTURE(bad);
    CHECK_FALSE(format::parse_repository_name(bad).has_value());
  }
}

TEST_CASE("hub client: a revision is one part of a path") {
  CHECK(format::url_component("refs/pr/1") == "refs%2Fpr%2F1");
  CHECK(format::url_component("v1.0 #?") == "v1.0%20%23%3F");
  const HubClient hub = client("https://hub");
  CHECK(hub.api_url("/tree/main") == "https://hub/api/models/me/ds/tree/main");
  CHECK(hub.organization() == "me");
  CHECK(hub.name() == "ds");
  CHECK(client("https://mirror//").endpoint() == "https://mirror");
}

TEST_CASE("hub client: the token is for the endpoint's scheme, host and port") {
  const HubClient hub = client("https://hub:8");
  CHECK(hub.token_for("https://hub:8/api") == "secret");
  for (const char* other : {"http://hub:8/api", "https://hub/api", "https://hub:80/api", "https://hub:8.evil.org/",
                            "https://hub:8@evil.org/", "https://evil.org/https://hub:8/"}) {
    CAPTURE(other);
    CHECK(hub.token_for(other).empty());
  }
}

TEST_CASE("hub client: neither token nor signature is for messages") {
  CHECK(format::public_url("https://u:p@s3/x?Signature=1#f") == "https://s3/x");
  const auto public_words = [](std::string text, std::string_view token) {
    return format::refusal_text(format::without_secret(std::move(text), token));
  };
  CHECK(public_words("bad token hf_secret, hf_secret!", "hf_secret") == "bad token (token), (token)!");
  std::string words(195, 'x');
  words += "hf_secret";
  const std::string cut = public_words(words, "hf_secret");
  CHECK(cut.size() <= 300);
  CHECK(cut.find("hf_") == std::string::npos);
  CHECK(public_words(std::string(1 << 22, '?'), "t").size() <= 300);
}

TEST_CASE("encoding: git's name for a small file, and base64") {
  const auto blob = [](std::string_view text) {
    format::ContentHash hash = format::git_blob_hash(text.size());
    hash.update(format::as_bytes(text));
    return hash.finish_hex();
  };
  CHECK(blob("") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");  // git hash-object /dev/null
  CHECK(blob("Hello, World!") == "b45ef6fec89518d314f546fd6c3025367b721684");
  const auto encode = [](std::string_view text) { return format::base64(format::as_bytes(text)); };
  CHECK(encode("").empty());
  CHECK(encode("f") == "Zg==");
  CHECK(encode("foobar") == "Zm9vYmFy");
  CHECK(encode(std::string_view("\xff\x00\xfe", 3)) == "/wD+");
}

}  // namespace dspack::hub_client_test
