#include <doctest/doctest.h>

#include <functional>

#include "reshard/run/journal.h"
#include "reshard/run/repack.h"
#include "reshard/run/run_state.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::journal_fit_test {

using namespace dspack;
using reshard::JournalState;
using test::TempFolder;

namespace {

/// Journals of runs that failed at every few operations, with records in the midst of tensors.
struct Journals {
  explicit Journals(std::string_view recipe) {
    test::SmallCheckpoint().write(source);
    const auto repository = open_repository(source.path().string(), {}, format::posix_file_system()).value();
    const format::Path out = target.path() / "out";
    const reshard::RepackOptions options{
        .recipe = reshard::parse_recipe(recipe).value(), .out = out, .jobs = 1, .first_record_bytes = 100};
    auto outlook = reshard::prepare_repack(*repository, options, {}).value();
    scope = reshard::whole_scope(outlook.plan, out);
    for (bool done = false; !done; operation += 5) {
      std::filesystem::remove_all(out);
      test::FaultyFileSystem failing(format::posix_file_system());
      failing.fail_from(operation);
      format::SilentProgress progress;
      done = reshard::repack(outlook, *repository, options, failing, progress, {}).has_value();
      if (done || !std::filesystem::exists(out / ".reshard" / "journal")) continue;
      const auto identity = reshard::run_identity(outlook, *repository);
      const auto loaded = reshard::load_journal(scope, identity, outlook.plan, format::posix_file_system());
      REQUIRE_MESSAGE(loaded.has_value(), loaded.error().message);  // what a run writes fits
      states.push_back(loaded->state);
    }
    plan = std::move(outlook.plan);
  }

  TempFolder source;
  TempFolder target;
  uint64_t operation = 5;
  reshard::RunScope scope;
  reshard::Plan plan;
  std::vector<JournalState> states;
};

}  // namespace

TEST_CASE("journal: records that say what the plan does not have are refused, whatever number lies") {
  using Lie = std::function<void(reshard::ShardBegun&)>;
  const uint64_t most = UINT64_MAX;
  const std::map<std::string, Lie> lies = {
      {"at behind the shard", [&](auto& r) { r.at = most; }},
      {"at before the tensor", [](auto& r) { r.at -= r.begun[0].whole.bytes + 1; }},
      {"one byte more", [](auto& r) { ++r.at; }},
      {"one byte less", [](auto& r) { --r.at; }},
      {"no digest of the shard", [](auto& r) { r.hash.reset(); }},
      {"a digest of another length", [](auto& r) { r.hash->bytes += 64; }},
      {"no tensor under way", [](auto& r) { r.begun.clear(); }},
      {"more tensors under way", [](auto& r) { r.begun.push_back(r.begun[0]); }},
      {"another length", [](auto& r) { r.begun[0].whole.bytes += 64; }},
      {"a block of rows too many", [](auto& r) { r.begun[0].row_blocks.emplace_back(); }},
      {"another block of rows",
       [](auto& r) { r.begun[0].row_block ? r.begun[0].row_block.reset() : void(r.begun[0].row_block.emplace()); }},
      {"tensors that the shard lacks", [](auto& r) { r.tensors.resize(r.tensors.size() + 1000); }},
      {"one tensor more", [](auto& r) { r.tensors.emplace_back(); }},
      {"no tensor", [](auto& r) { r.tensors.empty() ? r.tensors.resize(1) : r.tensors.clear(); }},
  };
  for (const std::string_view recipe : {R"({"by":"expert"})", R"({"by":"layer"})"}) {
    const Journals journals(recipe);
    size_t lied = 0;
    for (const JournalState& state : journals.states) {
      REQUIRE(fits_plan(state, journals.scope, journals.plan));
      for (const auto& [shard, record] : state.begun) {
        if (record.begun.empty()) continue;
        for (const auto& [name, lie] : lies) {
          CAPTURE(name);
          JournalState other = state;
          lie(other.begun.at(shard));
          CHECK_FALSE(fits_plan(other, journals.scope, journals.plan));
          ++lied;
        }
        JournalState other = state;
        other.begun[1000] = record;
        other.begun[1000].shard = 1000;
        CHECK_FALSE(fits_plan(other, journals.scope, journals.plan));
        other = state;
        other.file_hashes.push_back({.file = journals.plan.files.size(), .hash = {}});
        CHECK_FALSE(fits_plan(other, journals.scope, journals.plan));
        other = state;
        other.shards[shard] = {.shard = shard, .sha256 = {}, .tensors = {}};
        CHECK_FALSE(fits_plan(other, journals.scope, journals.plan));
      }
      for (const auto& [shard, record] : state.shards) {
        JournalState other = state;
        other.shards[shard].tensors[0].row_blocks.emplace_back();
        CHECK_FALSE(fits_plan(other, journals.scope, journals.plan));
      }
    }
    CHECK(lied > 50);
  }
}

}  // namespace dspack::journal_fit_test
