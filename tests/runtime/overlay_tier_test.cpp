// Two tiers as one: which of them is asked, and for what.
#include <doctest/doctest.h>

#include "format/checkpoint_builder.h"
#include "runtime/access/overlay_tier.h"

namespace dspack::overlay_tier_test {

using namespace dspack;
using format::Checkpoint;
using format::TensorEntry;
using runtime::Medium;

namespace {

constexpr ExpertKey kHere{LayerId(3), ExpertId(0)};
constexpr ExpertKey kThere{LayerId(3), ExpertId(1)};

TensorEntry tensor(const std::string& name, uint32_t file, uint64_t begin) {
  TensorEntry entry;
  entry.name = name;
  entry.dtype = Dtype::u8;
  entry.shape = {8};
  entry.file = file;
  entry.range = {begin, begin + 8};
  return entry;
}

std::string expert(uint32_t number) {
  return "model.layers.3.mlp.experts." + std::to_string(number) + ".up_proj.weight";
}

Checkpoint catalogue(std::vector<std::string> files, std::vector<TensorEntry> tensors) {
  std::vector<format::CheckpointFile> listed;
  for (std::string& path : files)
    listed.push_back({.path = std::move(path), .size_bytes = 100, .data_start = 0, .version = {}, .header = {}});
  format::CheckpointBuilder builder;
  REQUIRE(builder.add_known(std::move(listed), std::move(tensors), {}).has_value());
  return builder.finish();
}

/// Says what it was asked.
class Witnessed final : public runtime::Tier {
 public:
  Witnessed(Checkpoint own, Medium tier, unsigned depth, std::string& log)
      : own_(std::move(own)), tier_(tier), depth_(depth), log_(log) {}

  const Checkpoint& checkpoint() const override { return own_; }
  Result<void> read(uint32_t file, uint64_t offset, std::span<std::byte> into, const std::stop_token&) override {
    log_ += own_.files()[file].path + "@" + std::to_string(offset) + "+" + std::to_string(into.size()) + " ";
    return {};
  }
  Medium medium_of(ExpertKey) const override { return tier_; }
  bool must_verify(ExpertKey) const override { return tier_ == Medium::network; }
  std::optional<format::Digest> digest_of(const TensorEntry& entry) const override {
    return format::sha256(own_.files()[entry.file].path + entry.name);
  }
  bool distrust(ExpertKey) override { return tier_ == Medium::network; }
  Result<void> expect(std::span<const format::Extent> extents, const std::stop_token&) override {
    for (const format::Extent& extent : extents)
      log_ += own_.files()[extent.file].path + ":" + std::to_string(extent.range.begin) + " ";
    return {};
  }
  Result<void> keep(ExpertKey, std::span<const runtime::TensorBytes> tensors, const std::stop_token&) override {
    for (const runtime::TensorBytes& kept : tensors) {
      CHECK(kept.tensor == own_.find(kept.tensor->name));
      log_ += own_.files()[kept.tensor->file].path + "<" + std::to_string(kept.bytes.size()) + " ";
    }
    return {};
  }
  bool is_distant() const override { return tier_ == Medium::network; }
  uint64_t block_bytes(uint32_t file) const override { return own_.files()[file].path.size(); }
  unsigned depth() const override { return depth_; }

 private:
  Checkpoint own_;
  Medium tier_;
  unsigned depth_;
  std::string& log_;
};

/// The part has a norm and expert 0 in two files; of the rest's three tensors the last two are wanted.
struct Lab {
  std::string log;
  Checkpoint joined =
      catalogue({"norm", "zero", "whole-1", "whole-2"}, {tensor("model.norm.weight", 0, 0), tensor(expert(0), 1, 16),
                                                         tensor("lm_head.weight", 2, 32), tensor(expert(1), 3, 8)});
  runtime::OverlayTier tier{joined, {0, 1, 1, 2}, tiers()};

  std::vector<std::unique_ptr<runtime::Tier>> tiers() {
    std::vector<std::unique_ptr<runtime::Tier>> made;
    made.push_back(std::make_unique<Witnessed>(
        catalogue({"norm", "zero"}, {tensor("model.norm.weight", 0, 0), tensor(expert(0), 1, 16)}), Medium::disk, 3,
        log));
    made.push_back(std::make_unique<Witnessed>(
        catalogue({"whole-1", "whole-2"},
                  {tensor("model.norm.weight", 0, 0), tensor("lm_head.weight", 0, 32), tensor(expert(1), 1, 8)}),
        Medium::network, 5, log));
    return made;
  }
};

}  // namespace

TEST_CASE("overlay: a read goes to the tier that has the file") {
  Lab lab;
  std::vector<std::byte> into(8);
  for (uint32_t file = 0; file < 4; ++file)
    CHECK(lab.tier.read(file, 10 * file, into, {}).has_value());
  CHECK(lab.log == "norm@0+8 zero@10+8 whole-1@20+8 whole-2@30+8 ");
  CHECK(lab.tier.block_bytes(1) == 4);
  CHECK(lab.tier.block_bytes(3) == 7);
  CHECK(lab.tier.depth() == 5);
  CHECK(lab.tier.is_distant());
}

TEST_CASE("overlay: an expert is where its tensors are") {
  Lab lab;
  CHECK(lab.tier.medium_of(kHere) == Medium::disk);
  CHECK(lab.tier.medium_of(kThere) == Medium::network);
  CHECK_FALSE(lab.tier.must_verify(kHere));
  CHECK(lab.tier.must_verify(kThere));
  CHECK_FALSE(lab.tier.distrust(kHere));
  CHECK(lab.tier.distrust(kThere));
}

TEST_CASE("overlay: each tier is spoken to of its own tensors") {
  Lab lab;
  const auto& tensors = lab.joined.tensors();
  CHECK(lab.tier.digest_of(tensors[1]) == format::sha256("zero" + expert(0)));
  CHECK(lab.tier.digest_of(tensors[2]) == format::sha256("whole-1lm_head.weight"));
  const std::vector<std::byte> bytes(8);
  for (const auto& [key, number] : {std::pair(kHere, 1), std::pair(kThere, 3)}) {
    const runtime::TensorBytes held{.tensor = &tensors[static_cast<size_t>(number)], .bytes = bytes};
    CHECK(lab.tier.keep(key, std::span(&held, 1), {}).has_value());
  }
  CHECK(lab.log == "zero<8 whole-2<8 ");
  lab.log.clear();
  const std::vector<format::Extent> extents = {{3, {8, 16}}, {0, {0, 8}}, {2, {32, 40}}};
  CHECK(lab.tier.expect(extents, {}).has_value());
  CHECK(lab.log == "norm:0 whole-2:8 whole-1:32 ");
}

}  // namespace dspack::overlay_tier_test
