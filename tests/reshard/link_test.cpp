#include <doctest/doctest.h>

#include "format/index.h"
#include "reshard/run/repack.h"
#include "reshard/verbs/link.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::link_test {

using namespace dspack;
using format::posix_file_system;
using reshard::flat_name;
using reshard::LinkOutcome;
using reshard::LinkPlan;
using test::SmallCheckpoint;
using test::TempFolder;

namespace {

/// The small checkpoint packed in two ways, and what a flat folder of each is to hold.
struct Lab {
  Lab() {
    original.write(source);
    for (const std::string by : {"expert", "layer"})
      pack(by);
  }

  void pack(const std::string& by) {
    const auto repository = open_repository(source.path().string(), {}, posix_file_system()).value();
    const reshard::RepackOptions options{.recipe = {.by = reshard::parse_grouping(by).value()}, .out = packed(by)};
    const auto outlook = prepare_repack(*repository, options, {}).value();
    format::SilentProgress silent;
    REQUIRE(repack(outlook, *repository, options, posix_file_system(), silent, {}).has_value());
    const auto result = open_repository(packed(by).string(), {}, posix_file_system()).value();
    plans[by] = reshard::plan_links(format::Checkpoint::open(*result, 1, {}).value()).value();
  }

  [[nodiscard]] std::filesystem::path packed(const std::string& by) const { return work.path() / by; }
  [[nodiscard]] std::filesystem::path flat() const { return work.path() / "flat"; }

  Result<LinkOutcome> make(const std::string& by, format::FileSystem& files) const {
    return reshard::make_links(plans.at(by), packed(by), flat(), files);
  }

  /// Which of the two the flat folder is, whole; empty: there is none.
  [[nodiscard]] std::string found() const {
    if (!std::filesystem::exists(flat())) return {};
    for (const auto& [by, plan] : plans) {
      size_t links = 0;
      for (const auto& entry : std::filesystem::directory_iterator(flat()))
        links += entry.is_symlink() ? 1 : 0;
      if (links != plan.links.size()) continue;
      for (const auto& [name, path] : plan.links)
        CHECK(std::filesystem::canonical(flat() / name) == std::filesystem::canonical(packed(by) / path));
      CHECK(format::read_text(posix_file_system(), flat() / format::kIndexPath, 1 << 20).value() == plan.index);
      return by;
    }
    return "something else";
  }

  SmallCheckpoint original;
  TempFolder source;
  TempFolder work;
  std::map<std::string, LinkPlan> plans;
};

}  // namespace

TEST_CASE("link: flat names are stable, and never those by which loaders know another thing") {
  CHECK(flat_name("model/embed.safetensors") == "model-embed.safetensors");
  CHECK(flat_name("model/layers/003/experts/005.safetensors") == "model-layers-003-experts-005.safetensors");
  CHECK(flat_name("model/model-00001-of-00002.safetensors") == "model-00001-of-00002.safetensors");
  CHECK(flat_name("model/model.safetensors") == "model-model.safetensors");
  CHECK(flat_name("model.safetensors") == "model-model.safetensors");
  CHECK(flat_name("consolidated.safetensors") == "model-consolidated.safetensors");
  CHECK(flat_name("model/.safetensors") == "model-.safetensors");
}

TEST_CASE("link: the index leads to a link for every tensor, and companions have the source's names") {
  const Lab lab;
  for (const auto& [by, plan] : lab.plans) {
    const auto index = format::parse_index(plan.index).value();
    CHECK(index.files.size() == plan.weights);
    for (const std::string& file : index.files)
      CHECK(plan.links.contains(file));
    CHECK(plan.links.at("README.md") == "README.source.md");
    CHECK(plan.links.at("config.json") == "config.json");
    for (const char* name : {"manifest.json", "README.source.md", "provenance/headers.json.zst", format::kIndexPath})
      CHECK_FALSE(plan.links.contains(name));
  }
}

TEST_CASE(
    "link: killed at any operation, the folder is the old one, the new one or none, and the next run completes it") {
  const Lab lab;
  for (const std::string& before : {std::string(), std::string("expert")}) {
    uint64_t operation = 0;
    for (bool done = false; !done; ++operation) {
      std::filesystem::remove_all(lab.flat());
      if (!before.empty()) REQUIRE(lab.make(before, posix_file_system()).has_value());
      test::FaultyFileSystem files(posix_file_system());
      files.fail_from(operation);
      done = lab.make("layer", files).has_value();
      const std::string found = lab.found();
      INFO("operation " << operation << " after \"" << before << "\": \"" << found << "\"");
      CHECK((found.empty() || found == before || found == "layer"));
      REQUIRE(lab.make("layer", posix_file_system()).has_value());
      CHECK(lab.found() == "layer");
      CHECK_FALSE(std::filesystem::exists(lab.work.path() / ".flat.reshard-link"));
    }
    CHECK(operation > 20);
  }
}

TEST_CASE("link: a file system without links is named, with what to do, and nothing is left there") {
  const Lab lab;
  test::FaultyFileSystem files(posix_file_system());
  files.lack_links();
  const auto made = lab.make("layer", files);
  REQUIRE_FALSE(made.has_value());
  CHECK(made.error().kind == ErrorKind::unsupported);
  CHECK(made.error().message.find("no symbolic links") != std::string::npos);
  CHECK(made.error().message.find("reshard unpack") != std::string::npos);
  CHECK(lab.found().empty());
  CHECK_FALSE(std::filesystem::exists(lab.work.path() / ".flat.reshard-link"));
}

}  // namespace dspack::link_test
