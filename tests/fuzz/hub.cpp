// What the Hub answers beside files: a page of its listing, and the texts and headers around it. Input: its text.
#include <set>
#include <string>

#include "format/base/foreign_text.h"
#include "format/file_system.h"
#include "format/http/answer.h"
#include "format/http/headers.h"
#include "format/hub/listing.h"
#include "format/hub/name.h"
#include "tests/fuzz/target.h"

using namespace dspack;

namespace {

constexpr std::string_view kSecret = "s3cr3t";

bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

void check_listing(std::string_view text) {
  std::vector<format::HubFile> files;
  const auto parsed = format::parse_tree_page(text, files);
  if (!parsed) {
    fuzz::check_refusal(parsed.error());
    return;
  }
  for (const format::HubFile& file : files) {
    DSPACK_CHECK(!format::unsafe_path_reason(file.path, format::HiddenNames::accepted), file.path);
    DSPACK_CHECK(file.blob.empty() || (!file.sha256 && format::is_commit_id(file.blob)), file.path);
  }
  std::set<std::string> paths;
  for (const format::HubFile& file : files)
    paths.insert(file.path);
  const bool sorted = format::sort_listing(files).has_value();
  DSPACK_CHECK(sorted == (paths.size() == files.size()), "a file that is listed twice");
  const std::vector<format::ListedFile> visible = format::visible_files(files);
  for (const format::ListedFile& file : visible) {
    DSPACK_CHECK(!format::unsafe_path_reason(file.path), file.path);
    DSPACK_CHECK(!sorted || format::find_listed(visible, file.path) == &file, file.path);
  }
}

void check_words(std::string_view text) {
  const std::string words = format::refusal_text(text);
  DSPACK_CHECK(words.size() <= kPieceBytes, words);
  DSPACK_CHECK(printable(words) == words, words);
  if (holds(text, kSecret)) return;
  const std::string around = std::string(text) + " https://h/x?" + std::string(kSecret) + " " + std::string(text);
  DSPACK_CHECK(!holds(format::without_queries(around), kSecret), around);
  const std::string token = std::string(text) + std::string(kSecret) + std::string(text);
  DSPACK_CHECK(!holds(format::without_secret(token, kSecret), kSecret), token);
}

void check_name(std::string_view text) {
  const auto name = format::parse_hub_name(text);
  if (!name) return;
  DSPACK_CHECK(!format::unsafe_path_reason(name->repository) && !format::unsafe_path_reason(name->revision), text);
  const std::string url = format::hub_file_url("https://h", *name, "x");
  DSPACK_CHECK(format::repository_of_url("https://h", url) == name->repository, url);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::as_text(data, size);
  check_listing(text);
  check_words(text);
  check_name(text);
  const std::string next = format::parse_next_link(text);
  DSPACK_CHECK(next.empty() || holds(text, "<" + next + ">"), next);
  const auto wait = format::parse_rate_limit(text);
  DSPACK_CHECK(!wait || holds(text, "t=" + std::to_string(*wait)) || holds(text, "t=0"), "a wait from nowhere");
  return 0;
}
