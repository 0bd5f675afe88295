// The journal of a run. Input: lines of records.h behind an identity.
#include <algorithm>
#include <string>

#include "format/json.h"
#include "reshard/run/journal.h"
#include "tests/fuzz/records.h"
#include "tests/fuzz/target.h"

using namespace dspack;
using reshard::JournalDamaged;
using reshard::JournalFresh;
using reshard::JournalLoad;
using reshard::JournalLoaded;
using reshard::JournalState;
using reshard::parse_journal;

namespace {

const format::Json kIdentity = {{"journal", 2}, {"program", "0"}, {"plan", "p"}, {"source", format::Json::array()}};

/// The state as the journal that would lead to it: equal states, equal texts.
std::string text_of(const JournalState& state) {
  std::string text = reshard::journal_line(kIdentity);
  for (const auto& [number, record] : state.shards) {
    DSPACK_CHECK(record.shard == number, "a record under another number");
    text += reshard::journal_line(record);
  }
  for (const auto& [number, sealed] : state.files)
    text += reshard::journal_line(std::vector<reshard::FileSealed>{sealed});
  return text;
}

void check_loaded(std::string_view text, const JournalLoaded& loaded) {
  DSPACK_CHECK(loaded.valid_bytes > 0 && loaded.valid_bytes <= text.size(), "valid bytes that are not there");
  DSPACK_CHECK(text[loaded.valid_bytes - 1] == '\n', "half a record counts as valid");
  const std::string_view dropped = text.substr(loaded.valid_bytes);
  for (std::string_view rest = dropped; rest.find('\n') != std::string_view::npos;) {
    const std::string_view line = fuzz::take(rest, '\n');
    const std::string_view json = line.substr(std::min(line.size(), fuzz::kCheckDigits + 1));
    const bool fits = line.starts_with(to_hex(format::sha256(json)).substr(0, fuzz::kCheckDigits) + " ");
    const auto record = format::parse_json(json, format::kManifestDocument);
    DSPACK_CHECK(!fits || !record || !record->is_object(), "a good record was dropped");
  }
  const std::string state = text_of(loaded.state);
  const JournalLoad prefix = parse_journal(text.substr(0, loaded.valid_bytes), kIdentity);
  const auto* again = std::get_if<JournalLoaded>(&prefix);
  DSPACK_CHECK(again != nullptr && again->valid_bytes == loaded.valid_bytes, "the valid part does not load");
  DSPACK_CHECK(text_of(again->state) == state, "the valid part loads as another state");
  const JournalLoad rewritten = parse_journal(state, kIdentity);
  const auto* same = std::get_if<JournalLoaded>(&rewritten);
  DSPACK_CHECK(same != nullptr && same->valid_bytes == state.size(), "a written state does not load");
  DSPACK_CHECK(text_of(same->state) == state, "a written state loads as another");
}

/// A journal that loads also loads when its end is cut anywhere: never as damaged, never as foreign.
void check_cut(std::string_view text, const JournalLoaded& loaded) {
  for (const size_t cut : {text.size() / 3, text.size() / 2, text.size() - 1}) {
    const JournalLoad load = parse_journal(text.substr(0, cut), kIdentity);
    if (std::holds_alternative<JournalFresh>(load)) continue;
    const auto* shorter = std::get_if<JournalLoaded>(&load);
    DSPACK_CHECK(shorter != nullptr, "a cut journal does not load");
    DSPACK_CHECK(shorter->valid_bytes <= cut && shorter->valid_bytes <= loaded.valid_bytes, "more valid bytes");
    DSPACK_CHECK(shorter->state.files.size() <= loaded.state.files.size(), "a cut journal knows more");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::records_text(fuzz::as_text(data, size), reshard::journal_line(kIdentity));
  const JournalLoad load = parse_journal(text, kIdentity);
  if (const auto* loaded = std::get_if<JournalLoaded>(&load)) {
    check_loaded(text, *loaded);
    check_cut(text, *loaded);
  }
  if (const auto* damaged = std::get_if<JournalDamaged>(&load)) {
    DSPACK_CHECK(damaged->offset < text.size() && !damaged->reason.empty(), "damage outside the text");
    const JournalLoad before = parse_journal(std::string_view(text).substr(0, damaged->offset), kIdentity);
    const auto* loaded = std::get_if<JournalLoaded>(&before);
    DSPACK_CHECK(loaded != nullptr ? loaded->valid_bytes == damaged->offset : damaged->offset == 0,
                 "what lies before the damage does not load");
  }
  return 0;
}
