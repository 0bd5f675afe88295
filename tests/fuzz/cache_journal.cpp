// The journal of a cache folder. Input: lines of records.h behind a record with the origin.
#include <string>

#include "format/cache/cache_journal.h"
#include "format/file_system.h"
#include "tests/fuzz/records.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using format::CacheDamaged;
using format::CacheLoad;
using format::CacheLoaded;
using format::CacheState;
using format::parse_cache_journal;

namespace {

constexpr char kOrigin[] = "http://h/";

/// The state as the journal that would lead to it: equal states, equal texts. What was forgotten has been a file.
std::string text_of(const CacheState& state) {
  std::string text = format::cache_line_origin(kOrigin);
  for (const auto& [path, kept] : state.texts)
    text += format::cache_line(path, kept);
  for (const std::string& path : state.absent)
    text += format::cache_line_absent(path);
  for (const auto& [path, header] : state.headers)
    text += format::cache_line(path, header);
  for (const auto& [path, digests] : state.forgotten) {
    text += format::cache_line(path, format::KeptFile{.sha256 = {}, .tensors = digests});
    text += format::cache_line_removed(path);
  }
  for (const auto& [path, file] : state.files)
    text += format::cache_line(path, file);
  for (const auto& [path, parts] : state.parts)
    text += format::cache_line(path, parts);
  return text;
}

void check_paths(const CacheState& state) {
  const auto check = [](const std::string& path) { DSPACK_CHECK(!format::unsafe_path_reason(path), path); };
  for (const auto& [path, file] : state.files)
    check(path);
  for (const auto& [path, parts] : state.parts)
    check(path);
  for (const auto& [path, text] : state.texts)
    check(path);
  for (const auto& [path, header] : state.headers) {
    check(path);
    DSPACK_CHECK(header.text.size_bytes <= header.file_bytes, "a header longer than its file");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::records_text(fuzz::as_text(data, size), format::cache_line_origin(kOrigin));
  const CacheLoad load = parse_cache_journal(text, kOrigin);
  if (const auto* loaded = std::get_if<CacheLoaded>(&load)) {
    DSPACK_CHECK(loaded->valid_bytes <= text.size(), "more valid bytes than there are");
    check_paths(loaded->state);
    const CacheLoad valid = parse_cache_journal(std::string_view(text).substr(0, loaded->valid_bytes), kOrigin);
    const auto* same = std::get_if<CacheLoaded>(&valid);
    DSPACK_CHECK(same != nullptr && text_of(same->state) == text_of(loaded->state), "the valid part loads otherwise");
    if (loaded->valid_bytes > 0) {
      const CacheLoad cut = parse_cache_journal(std::string_view(text).substr(0, loaded->valid_bytes - 1), kOrigin);
      DSPACK_CHECK(std::holds_alternative<CacheLoaded>(cut), "a cut end counts as damage");
    }
    const std::string written = text_of(loaded->state);
    const CacheLoad again = parse_cache_journal(written, kOrigin);
    const auto* reread = std::get_if<CacheLoaded>(&again);
    DSPACK_CHECK(reread != nullptr && text_of(reread->state) == written, "what is written reads otherwise");
  }
  if (const auto* damaged = std::get_if<CacheDamaged>(&load))
    DSPACK_CHECK(damaged->offset < text.size() && !damaged->reason.empty(), "damage outside the text");
  return 0;
}
