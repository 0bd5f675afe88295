// What a Hub answers when something is published to it. Input: the first line says which answer it is ("info",
// "modes", "batch SIZE", "commit", "pulls", "opened", "words", "head"), the rest is its text. "card" is the YAML block
// of a source's model card.
#include <algorithm>

#include "format/base/size.h"
#include "format/http/answer.h"
#include "format/http/headers.h"
#include "format/hub/answers.h"
#include "format/hub/name.h"
#include "reshard/run/model_card.h"
#include "tests/fuzz/target.h"

using namespace dspack;

namespace {

constexpr char kToken[] = "hf_s3cr3t";

/// Refused with a text, or handed to `check`.
template <class T, class Check>
void judge(const Result<T>& read, const Check& check) {
  if (read) {
    check(*read);
  } else {
    fuzz::check_refusal(read.error());
  }
}

bool is_one_line(std::string_view text) {
  return std::ranges::none_of(text, [](unsigned char c) { return c < ' ' || c == 0x7f; });
}

void check_way(const format::LfsAction& action, uint64_t size_bytes) {
  DSPACK_CHECK(action.href.starts_with("http") && is_one_line(action.href), action.href);
  judge(format::upload_way(action, size_bytes), [&](const format::UploadWay& way) {
    DSPACK_CHECK(way.multipart || way.parts.size() == 1, "parts without a multipart upload");
    uint64_t at = 0;
    for (const format::UploadPart& part : way.parts) {
      DSPACK_CHECK(part.range.begin == at && (part.range.end > at || !way.multipart),
                   "parts with a gap, or of nothing");
      DSPACK_CHECK(part.url.starts_with("http") && is_one_line(part.url), part.url);
      at = part.range.end;
    }
    DSPACK_CHECK(at == size_bytes, "the parts are not the file");
    for (const std::string& header : way.headers)
      DSPACK_CHECK(is_one_line(header) && header.find(": ") != std::string::npos, header);
  });
}

void check_batch(std::string_view text, uint64_t size_bytes) {
  const format::Digest oid = format::sha256("");
  judge(format::read_batch(text, {oid}), [&](const std::vector<format::LfsObject>& objects) {
    DSPACK_CHECK(objects.size() == 1 && objects[0].oid == oid, "another object");
    if (objects[0].upload) check_way(*objects[0].upload, size_bytes);
  });
}

void check_words(std::string_view text) {
  const std::string words = format::refusal_text(format::without_secret(std::string(text), kToken));
  DSPACK_CHECK(words.size() <= 300 && words.find(kToken) == std::string::npos, words);
  const size_t url = words.find("://");
  const size_t query = url == std::string::npos ? url : words.find('?', url);
  const bool in_url = query != std::string::npos && words.find_first_of(" \t\r\n\"'<>()]}", url) > query;
  DSPACK_CHECK(!in_url || words.substr(query).starts_with("?...") || words.size() > 195, words);
}

void check_head(std::string_view text) {
  const format::HttpRequest call{.method = "POST", .url = "https://h/x", .name = "n", .any_status = true};
  format::HttpAnswer answer(call);
  for (const std::string_view line : fuzz::split(text, '\n'))
    answer.add_line(line);
  const auto failure = answer.judge(503);
  DSPACK_CHECK(failure && failure->may_pass && failure->wait_seconds.value_or(0) >= 0, "a busy server is final");
}

void check_card(std::string_view text) {
  const std::string block = reshard::packed_card_fields({}, text);
  const auto again = reshard::card_fields(block);
  for (const auto& [name, value] : reshard::card_fields(text))
    DSPACK_CHECK(!again.contains(name) || again.at(name) == value, name);
  DSPACK_CHECK(reshard::packed_card_fields({}, block) == block, block);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::as_text(data, size);
  std::string_view first = fuzz::take(text, '\n');
  const std::string_view kind = fuzz::take(first, ' ');
  if (kind == "batch") check_batch(text, parse_decimal(first).value_or(1));
  if (kind == "words") check_words(text);
  if (kind == "head") check_head(text);
  if (kind == "card") check_card(text);
  if (kind == "info") {
    judge(format::read_repository_info(text), [](const format::RepositoryInfo& info) {
      DSPACK_CHECK(info.head.empty() || format::is_commit_id(info.head), info.head);
    });
  }
  if (kind == "modes") {
    judge(format::read_preupload(text, {"a", "b"}),
          [](const std::vector<format::UploadMode>& modes) { DSPACK_CHECK(modes.size() == 2, "not one mode a file"); });
  }
  if (kind == "commit")
    judge(format::read_commit(text), [](const std::string& id) { DSPACK_CHECK(format::is_commit_id(id), id); });
  if (kind == "opened")
    judge(format::read_opened(text), [](uint64_t number) { DSPACK_CHECK(number > 0, "no number"); });
  if (kind == "pulls") judge(format::read_pull_requests(text), [](const auto&) {});
  return 0;
}
