#include <doctest/doctest.h>

#include "reshard/journal.h"
#include "tests/support/temp_folder.h"

using namespace dspack;
using reshard::Journal;
using reshard::parse_journal;

namespace {

const format::Json kIdentity = {{"journal", 1}, {"program", "0"}, {"plan", "p"}, {"source", format::Json::array()}};

/// The text of a journal with two records.
std::string sample(const test::TempFolder& folder) {
  const auto journal = Journal::open(format::posix_file_system(), folder.path() / "journal", kIdentity, 0).value();
  CHECK(journal->append({reshard::FileSealed{5, format::sha256("file")}}));
  CHECK(journal->append(reshard::ShardDone{
      2, format::sha256("shard"), {{format::sha256("t"), {format::sha256("b")}}, {format::sha256("u"), {}}}}));
  return folder.read("journal");
}

}  // namespace

TEST_CASE("journal: what was appended is loaded") {
  const test::TempFolder folder;
  const std::string text = sample(folder);
  const auto load = parse_journal(text, kIdentity);
  const auto* loaded = std::get_if<reshard::JournalLoaded>(&load);
  REQUIRE(loaded != nullptr);
  CHECK(loaded->valid_bytes == text.size());
  CHECK(loaded->state.files.at(5) == format::sha256("file"));
  REQUIRE(loaded->state.shards.at(2).tensors.size() == 2);
  CHECK(loaded->state.shards.at(2).tensors[0].row_blocks[0] == format::sha256("b"));
}

TEST_CASE("journal: a tail torn at any byte loses only its own record") {
  const test::TempFolder folder;
  const std::string text = sample(folder);
  const size_t last_record = text.rfind('\n', text.size() - 2) + 1;
  for (size_t bytes = last_record; bytes < text.size(); ++bytes) {
    const auto load = parse_journal(text.substr(0, bytes), kIdentity);
    const auto* loaded = std::get_if<reshard::JournalLoaded>(&load);
    REQUIRE(loaded != nullptr);
    CHECK(loaded->valid_bytes == last_record);
    CHECK(loaded->state.shards.empty());
    CHECK(loaded->state.files.size() == 1);
  }
  std::string zeros = text;  // a record whose bytes never reached the disk
  for (size_t i = last_record; i + 1 < zeros.size(); ++i)
    zeros[i] = '\0';
  const auto zero_load = parse_journal(zeros, kIdentity);
  REQUIRE(std::get_if<reshard::JournalLoaded>(&zero_load) != nullptr);
  CHECK(std::get<reshard::JournalLoaded>(zero_load).valid_bytes == last_record);
}

TEST_CASE("journal: whatever lies behind the last good record is dropped") {
  const test::TempFolder folder;
  const std::string text = sample(folder);
  const size_t last_record = text.rfind('\n', text.size() - 2) + 1;
  std::string noise;
  for (int i = 0; i < 5000; ++i)
    noise += static_cast<char>(i * 2654435761U >> 13);  // newlines among them
  REQUIRE(noise.find('\n') != std::string::npos);
  const std::string zeros(4096, '\0');
  for (const std::string& tail : {zeros, zeros + "\n" + zeros, noise, "\n\n" + noise + "\n", std::string("{}\n{}\n")}) {
    const auto behind = parse_journal(text + tail, kIdentity);
    REQUIRE(std::holds_alternative<reshard::JournalLoaded>(behind));
    CHECK(std::get<reshard::JournalLoaded>(behind).valid_bytes == text.size());
    const auto instead = parse_journal(text.substr(0, last_record + 50) + tail, kIdentity);
    REQUIRE(std::holds_alternative<reshard::JournalLoaded>(instead));
    CHECK(std::get<reshard::JournalLoaded>(instead).valid_bytes == last_record);
    const auto between = parse_journal(text.substr(0, last_record) + tail + "\n" + text.substr(last_record), kIdentity);
    REQUIRE(std::holds_alternative<reshard::JournalDamaged>(between));
    CHECK(std::get<reshard::JournalDamaged>(between).offset == last_record);
  }
}

TEST_CASE("journal: damage before the tail is told with its place") {
  const test::TempFolder folder;
  std::string text = sample(folder);
  const size_t second = text.find('\n') + 1;
  text[second + 30] ^= 1;
  const auto load = parse_journal(text, kIdentity);
  const auto* damaged = std::get_if<reshard::JournalDamaged>(&load);
  REQUIRE(damaged != nullptr);
  CHECK(damaged->offset == second);
}

TEST_CASE("journal: another plan, version or source is foreign, with the reason") {
  const test::TempFolder folder;
  const std::string text = sample(folder);
  const auto reason = [&](const char* key, const format::Json& value) {
    format::Json other = kIdentity;
    other[key] = value;
    const auto load = parse_journal(text, other);
    const auto* foreign = std::get_if<reshard::JournalForeign>(&load);
    return foreign == nullptr ? "" : foreign->reason;
  };
  CHECK(reason("program", "1").find("version 0") != std::string::npos);
  CHECK(reason("plan", "q").find("recipe") != std::string::npos);
  CHECK(reason("source", {"x"}).find("source has changed") != std::string::npos);
}

TEST_CASE("journal: of a source on the Hub it tells the commit, however it was asked for") {
  const auto identity = [](const std::string& commit, const std::string& asked) {
    format::Json json = kIdentity;
    json[reshard::kOriginKey] = {{"repository", "org/name"}, {"commit", commit}};
    json[reshard::kAskedKey] = asked;
    return json;
  };
  const std::string commit(40, 'a');
  const std::string text = reshard::journal_line(identity(commit, "org/name@main"));
  const auto origin = reshard::journal_origin(text);
  REQUIRE(origin.has_value());
  CHECK(origin->repository == "org/name");
  CHECK(origin->commit == commit);
  CHECK(origin->asked == "org/name@main");
  CHECK(std::holds_alternative<reshard::JournalLoaded>(parse_journal(text, identity(commit, "org/name@" + commit))));
  const auto other = parse_journal(text, identity(std::string(40, 'b'), "org/name@main"));
  REQUIRE(std::holds_alternative<reshard::JournalForeign>(other));
  CHECK(std::get<reshard::JournalForeign>(other).reason == "it was begun from org/name at commit " + commit);
  CHECK_FALSE(reshard::journal_origin(reshard::journal_line(kIdentity)).has_value());
  CHECK_FALSE(reshard::journal_origin(text.substr(0, text.size() / 2)).has_value());
  for (const format::Json& damaged : {identity("main", "org/name@main"), identity("../x", "org/name@main")})
    CHECK_FALSE(reshard::journal_origin(reshard::journal_line(damaged)).has_value());
}

TEST_CASE("journal: nothing, or a torn first record, is a fresh start") {
  CHECK(std::holds_alternative<reshard::JournalFresh>(parse_journal("", kIdentity)));
  CHECK(std::holds_alternative<reshard::JournalFresh>(parse_journal("0123456789abcdef {\"jour", kIdentity)));
}

TEST_CASE("journal: a resumed journal drops the torn tail and goes on") {
  const test::TempFolder folder;
  const std::string text = sample(folder);
  const size_t last_record = text.rfind('\n', text.size() - 2) + 1;
  folder.write("journal", text.substr(0, text.size() - 7));
  {
    const auto journal =
        Journal::open(format::posix_file_system(), folder.path() / "journal", kIdentity, last_record).value();
    CHECK(journal->append({reshard::FileSealed{6, format::sha256("next")}}));
  }
  const auto load = parse_journal(folder.read("journal"), kIdentity);
  CHECK(std::get<reshard::JournalLoaded>(load).state.files.size() == 2);
}
