#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "reshard/run/journal.h"
#include "tests/support/temp_folder.h"

namespace dspack::journal_test {

using namespace dspack;
using reshard::Journal;
using reshard::journal_line;
using reshard::parse_journal;

namespace {

const format::Json kIdentity = {{"journal", 2}, {"program", "0"}, {"plan", "p"}, {"source", format::Json::array()}};

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
  CHECK(loaded->state.files.at(5).sha256 == format::sha256("file"));
  REQUIRE(loaded->state.shards.at(2).tensors.size() == 2);
  CHECK(loaded->state.shards.at(2).tensors[0].row_blocks[0] == format::sha256("b"));
}

TEST_CASE("journal: how far a shard has come is loaded with all its tensors, and forgotten when it is told so") {
  const test::TempFolder folder;
  format::Sha256 hash;
  hash.update(format::as_bytes("some bytes"));
  const reshard::TensorBegun open{
      .whole = hash.state(), .row_blocks = {format::sha256("block")}, .row_block = hash.state()};
  const std::vector<reshard::FileBegun> hashes{{.file = 4, .hash = hash.state()}};
  const auto journal = Journal::open(format::posix_file_system(), folder.path() / "journal", kIdentity, 0).value();
  const auto load = [&] {
    return std::get<reshard::JournalLoaded>(parse_journal(folder.read("journal"), kIdentity)).state;
  };
  REQUIRE(journal->append(reshard::ShardBegun{.shard = 3, .at = 100, .tensors = {{format::sha256("t"), {}}}}, hashes));
  REQUIRE(journal->append(reshard::ShardBegun{.shard = 1, .at = 50, .begun = {{.whole = hash.state()}}}));
  REQUIRE(journal->append(reshard::ShardBegun{.shard = 3,
                                              .at = 200,
                                              .hash = hash.state(),
                                              .first = 1,
                                              .tensors = {{format::sha256("u"), {}}},
                                              .begun = {open}}));
  const auto state = load();
  const reshard::ShardBegun& shard = state.begun.at(3);
  CHECK(shard.at == 200);
  CHECK(shard.first == 0);
  CHECK(shard.hash == hash.state());
  REQUIRE(shard.tensors.size() == 2);
  CHECK(shard.tensors[1].whole == format::sha256("u"));
  REQUIRE(shard.begun.size() == 1);
  CHECK(shard.begun[0].row_block == hash.state());
  CHECK(shard.begun[0].row_blocks == open.row_blocks);
  CHECK_FALSE(state.begun.at(1).begun[0].row_block);
  REQUIRE(state.file_hashes.size() == 1);
  CHECK(state.file_hashes[0].file == 4);
  CHECK(state.file_hashes[0].hash == hash.state());

  REQUIRE(journal->append(reshard::ShardBegun{.shard = 3}));
  CHECK_FALSE(load().begun.contains(3));
  CHECK(load().file_hashes.empty());
  REQUIRE(journal->append(reshard::ShardDone{1, format::sha256("shard"), {{format::sha256("t"), {}}}}, hashes));
  CHECK(load().begun.empty());
  CHECK(load().file_hashes.size() == 1);
  const std::string good = folder.read("journal");
  const std::string gap = good + journal_line(reshard::ShardBegun{.shard = 2, .at = 9, .first = 1});
  const auto damaged = parse_journal(gap, kIdentity);
  REQUIRE(std::holds_alternative<reshard::JournalDamaged>(damaged));
  CHECK(std::get<reshard::JournalDamaged>(damaged).offset == good.size());
}

TEST_CASE("journal: a shard that is done does not begin again") {
  const test::TempFolder folder;
  const std::string good = sample(folder);  // shard 2 is done
  for (const reshard::ShardBegun& again : {reshard::ShardBegun{.shard = 2, .at = 9}, reshard::ShardBegun{.shard = 2}}) {
    CAPTURE(again.at);
    const auto load = parse_journal(good + journal_line(again), kIdentity);
    REQUIRE(std::holds_alternative<reshard::JournalDamaged>(load));
    CHECK(std::get<reshard::JournalDamaged>(load).offset == good.size());
    CHECK(std::get<reshard::JournalDamaged>(load).reason.find("done") != std::string::npos);
    const reshard::ShardBegun other{.shard = 3, .at = again.at};
    CHECK(std::holds_alternative<reshard::JournalLoaded>(parse_journal(good + journal_line(other), kIdentity)));
  }
}

TEST_CASE("journal: one of a version that kept other records is foreign") {
  format::Json old = kIdentity;
  old["journal"] = 1;
  const auto load = parse_journal(journal_line(old), kIdentity);
  REQUIRE(std::holds_alternative<reshard::JournalForeign>(load));
  CHECK(std::get<reshard::JournalForeign>(load).reason == "it was begun by a version that kept another journal");
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
  const auto origin = reshard::journal_head(text).value().origin;
  REQUIRE(origin.has_value());
  CHECK(origin->repository == "org/name");
  CHECK(origin->commit == commit);
  CHECK(origin->asked == "org/name@main");
  CHECK(std::holds_alternative<reshard::JournalLoaded>(parse_journal(text, identity(commit, "org/name@" + commit))));
  const auto other = parse_journal(text, identity(std::string(40, 'b'), "org/name@main"));
  REQUIRE(std::holds_alternative<reshard::JournalForeign>(other));
  CHECK(std::get<reshard::JournalForeign>(other).reason == "it was begun from org/name at commit " + commit);
  CHECK_FALSE(reshard::journal_head(reshard::journal_line(kIdentity))->origin.has_value());
  CHECK_FALSE(reshard::journal_head(text.substr(0, text.size() / 2)).has_value());
  for (const format::Json& damaged : {identity("main", "org/name@main"), identity("../x", "org/name@main")})
    CHECK_FALSE(reshard::journal_head(reshard::journal_line(damaged))->origin.has_value());
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

TEST_CASE(
    "journal: a shard that was read in part has no digest of its own, and one of a conversion says what it cost") {
  reshard::ShardDone record{.shard = 3, .sha256 = {}, .tensors = {{format::sha256("plain"), {}}}};
  record.tensors.push_back({.whole = format::sha256("bf16"),
                            .row_blocks = {},
                            .needed = {format::sha256("scales"), format::sha256("global")},
                            .loss = kernels::Loss{0.1, 1.0 / 3}});
  record.tensors.push_back({.whole = format::sha256("e8m0"), .row_blocks = {format::sha256("b")}, .needed = {}});
  const std::string text = journal_line(kIdentity) + journal_line(record);
  const auto load = parse_journal(text, kIdentity);
  REQUIRE(std::holds_alternative<reshard::JournalLoaded>(load));
  const reshard::ShardDone& read = std::get<reshard::JournalLoaded>(load).state.shards.at(3);
  CHECK_FALSE(read.sha256);
  REQUIRE(read.tensors.size() == 3);
  CHECK(read.tensors[0].whole == format::sha256("plain"));
  CHECK(read.tensors[0].needed.empty());
  CHECK_FALSE(read.tensors[0].loss);
  CHECK(read.tensors[1].whole == format::sha256("bf16"));
  CHECK(read.tensors[1].needed == std::vector{format::sha256("scales"), format::sha256("global")});
  REQUIRE(read.tensors[1].loss);
  CHECK(read.tensors[2].row_blocks == std::vector{format::sha256("b")});
  CHECK(journal_line(read) == journal_line(record));
}

TEST_CASE("journal: losses come back to the last bit") {
  std::mt19937_64 engine(4);
  std::vector<double> sums{0,
                           1e-300,
                           std::numeric_limits<double>::max(),
                           std::numeric_limits<double>::denorm_min(),
                           2,
                           1e15,
                           123456789012345678.0,
                           0.1 + 0.2};
  for (int i = 0; i < 2000; ++i) {
    const auto any = std::bit_cast<double>(engine() >> 1);  // not negative
    if (std::isfinite(any)) sums.push_back(any);
  }
  reshard::ShardDone record{.shard = 0, .sha256 = {}, .tensors = {}};
  for (const double sum : sums)
    record.tensors.push_back({.whole = {}, .row_blocks = {}, .needed = {}, .loss = kernels::Loss{sum, 1}});
  const auto load = parse_journal(journal_line(kIdentity) + journal_line(record), kIdentity);
  const auto& tensors = std::get<reshard::JournalLoaded>(load).state.shards.at(0).tensors;
  REQUIRE(tensors.size() == sums.size());
  for (size_t i = 0; i < sums.size(); ++i)
    CHECK(std::bit_cast<uint64_t>(tensors[i].loss->squared_error) == std::bit_cast<uint64_t>(sums[i]));
}

TEST_CASE("journal: malformed digests, needed tensors and losses are damage") {
  const std::string digest = to_hex(format::sha256("x"));
  const auto damage = [](const format::Json& tensor) {
    const std::string text = journal_line(kIdentity) +
                             format::record_line({{"shard", 0}, {"tensors", format::Json::array({tensor})}}) +
                             journal_line(std::vector<reshard::FileSealed>{});
    const auto load = parse_journal(text, kIdentity);
    const auto* damaged = std::get_if<reshard::JournalDamaged>(&load);
    return damaged == nullptr ? std::string() : damaged->reason;
  };
  using format::Json;
  CHECK(damage(Json::array({digest})).empty());
  CHECK(damage({{"sha256", Json::array({digest})}, {"loss", {1, 2.5}}}).empty());
  for (const Json& tensor :
       {Json(), Json(3), Json::array(), Json::object(), Json({{"sha256", digest}}), Json({{"sha256", Json::array()}}),
        Json::array({3}), Json::array({digest.substr(1)}), Json({{"sha256", Json::array({digest})}, {"needed", 3}}),
        Json({{"sha256", Json::array({digest})}, {"needed", Json::array({"00"})}}),
        Json({{"sha256", Json::array({digest})}, {"loss", 3}}),
        Json({{"sha256", Json::array({digest})}, {"loss", {1}}}),
        Json({{"sha256", Json::array({digest})}, {"loss", {1, nullptr}}}),
        Json({{"sha256", Json::array({digest})}, {"loss", {1, 2, 3}}})}) {
    CAPTURE(tensor.dump());
    CHECK_FALSE(damage(tensor).empty());
  }
}

}  // namespace dspack::journal_test
