#include <doctest/doctest.h>

#include "format/base/foreign_text.h"
#include "format/http/answer.h"

namespace dspack::refusal_text_test {

using namespace dspack;
using format::refusal_text;

TEST_CASE("refusal text: what a server says, whatever it is wrapped in") {
  CHECK(refusal_text("told to fail\n") == "told to fail");
  CHECK(refusal_text(R"({"error":"Invalid username or password."})") == "Invalid username or password.");
  CHECK(refusal_text(R"({"message":"too  many\nrequests","error":{"code":1}})") == "too many requests");
  CHECK(refusal_text("<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code><Message>Request has expired</Message>"
                     "<Expires>2026</Expires></Error>") == "AccessDenied: Request has expired");
  CHECK(refusal_text("<Error><Code>NoSuchKey</Code></Error>") == "NoSuchKey");
  CHECK(refusal_text(R"({"errors":[{"message":"a"},1,{"message":"b"}]})") == "a; b");
  CHECK(refusal_text(R"({"error":{"a":1}})").empty());
  CHECK(refusal_text("<Code>never closed") == "never closed");
  for (const char* nothing : {"", " \r\n", "<html><body>403</body></html>", "{\"error\":", "{}", "<Code>"}) {
    CAPTURE(nothing);
    CHECK(refusal_text(nothing).empty());
  }
  const std::string cut = refusal_text(std::string(1000, 'x'));
  CHECK(cut.size() == kPieceBytes);
  CHECK(refusal_text("see \xC2\x9B\xE2\x80\xAE") == "see \\u009b\\u202e");
}

TEST_CASE("refusal text: nothing of a signed link") {
  CHECK(refusal_text("no: https://cdn/a/b?Expires=1&Signature=abc, try again") == "no: https://cdn/a/b?... try again");
  CHECK(refusal_text("see https://s3/x?Signature=abc and \"http://h/?k=v\"") ==
        "see https://s3/x?... and \"http://h/?...\"");
  CHECK(format::without_queries("a http://h/x?s=1 and http://h/y#z end") == "a http://h/x?... and http://h/y?... end");
  CHECK(format::without_queries("\"http://h/x?s\"") == "\"http://h/x?...\"");
  CHECK(format::without_queries("what? nothing://") == "what? nothing://");
  CHECK(refusal_text("<Error><Code>SignatureDoesNotMatch</Code><Message>no</Message>"
                     "<StringToSign>s3cr3t</StringToSign></Error>") == "SignatureDoesNotMatch: no");
}

TEST_CASE("refusal text: a token that a server repeats is not shown") {
  CHECK(format::without_secret("bad token hf_x: hf_x!", "hf_x") == "bad token (token): (token)!");
  CHECK(format::without_secret("as it is", "") == "as it is");
}

}  // namespace dspack::refusal_text_test
