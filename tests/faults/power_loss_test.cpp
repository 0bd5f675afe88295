// Power lost, and processes killed, at every operation of a small repack: the next run ends with the same bytes.
#include <fmt/format.h>

#include "tests/faults/repack_lab.h"
#include "tests/support/fault_tally.h"

namespace dspack::power_loss_test {

using namespace dspack;
using test::CrashFileSystem;
using test::FaultTally;
using test::FaultyFileSystem;
using test::RepackLab;
using test::Survival;

namespace {

struct Loss {
  Survival survival;
  const char* name;
  unsigned seeds_short;
  unsigned seeds_long;
};
constexpr Loss kLosses[] = {{Survival::nothing, "nothing unsynced survives", 1, 1},
                            {Survival::everything, "everything survives", 1, 1},
                            {Survival::prefix, "a torn prefix survives", 2, 20},
                            {Survival::pages, "random pages survive", 2, 20}};

/// The disk of a run that was cut at an operation, power still on.
std::unique_ptr<CrashFileSystem> cut_at(const RepackLab& lab, std::unique_ptr<CrashFileSystem> disk,
                                        uint64_t operation) {
  FaultyFileSystem failing(*disk, {.from = operation});
  (void)lab.run(failing);  // it may just have finished: then what follows is a second run
  return disk;
}

Survival random_survival(std::mt19937& random) {
  return kLosses[random() % std::size(kLosses)].survival;
}

/// Four runs, each cut at a random operation, then one to the end. `kills`: every other cut leaves the power on.
void cut_again_and_again(const RepackLab& lab, FaultTally& tally, unsigned chains, bool kills) {
  for (uint32_t seed = 0; seed < chains; ++seed) {
    std::mt19937 random(seed);
    auto disk = RepackLab::fresh_disk();
    std::string failure;
    for (int loss = 0; loss < 4 && failure.empty(); ++loss) {
      disk = cut_at(lab, std::move(disk), random() % lab.operations());
      if (!kills || random() % 2 == 0) disk = disk->after_power_loss(random_survival(random), random());
      failure = lab.wrongly_sealed(*disk);
    }
    tally.add(fmt::format("seed {}", seed), failure.empty() ? lab.finish(*disk) : failure);
  }
}

}  // namespace

TEST_CASE("power: lost at any operation, the next run ends with the same bytes") {
  const RepackLab lab;
  REQUIRE(lab.operations() > 100);
  std::vector<std::unique_ptr<CrashFileSystem>> cut;
  for (uint64_t operation = 0; operation < lab.operations(); ++operation)
    cut.push_back(cut_at(lab, RepackLab::fresh_disk(), operation));
  for (const Loss& loss : kLosses) {
    FaultTally tally(fmt::format("power lost at every operation: {}", loss.name));
    for (uint64_t operation = 0; operation < cut.size(); ++operation) {
      const unsigned seeds = test::long_faults() ? loss.seeds_long : loss.seeds_short;
      for (uint32_t seed = 0; seed < seeds; ++seed) {
        const auto found = cut[operation]->after_power_loss(loss.survival, seed);
        tally.add(fmt::format("operation {} of {}, {}, seed {}", operation, cut.size(), loss.name, seed),
                  lab.finish(*found));
      }
    }
  }
}

TEST_CASE("power: lost again and again while going on, the last run ends with the same bytes") {
  FaultTally tally("power lost again in each of three resumes, random moments");
  cut_again_and_again(RepackLab(), tally, test::long_faults() ? 5000 : 300, false);
}

TEST_CASE("power: lost in a run that goes on after a kill, the last run ends with the same bytes") {
  // What the killed run had not synced is still not synced, and the second run must not take it for durable.
  const RepackLab lab;
  FaultTally tally("killed, gone on, then power lost, random moments");
  const unsigned pairs = test::long_faults() ? 10000 : 600;
  for (uint32_t seed = 0; seed < pairs; ++seed) {
    std::mt19937 random(seed);
    auto disk = cut_at(lab, RepackLab::fresh_disk(), random() % lab.operations());
    disk = cut_at(lab, std::move(disk), random() % lab.operations());
    disk = disk->after_power_loss(seed % 2 == 0 ? Survival::nothing : random_survival(random), random());
    tally.add(fmt::format("seed {}", seed), lab.finish(*disk));
  }
}

TEST_CASE("power: lost in a run that resumes one killed as it began, its folder is still known to be a run's") {
  const RepackLab lab;
  FaultTally tally("killed as it began, gone on, then power lost");
  constexpr uint64_t kFirstRecord = 128;  // the first record is written before this operation, and synced by the next
  for (uint64_t killed = kFirstRecord / 2; killed < kFirstRecord; ++killed) {
    for (uint64_t lost = kFirstRecord; lost < 2 * kFirstRecord; lost += 8) {
      auto disk = cut_at(lab, cut_at(lab, RepackLab::fresh_disk(), killed), lost);
      disk = disk->after_power_loss(Survival::nothing, 0);
      tally.add(fmt::format("operations {} and {}", killed, lost), lab.finish(*disk));
    }
  }
}

TEST_CASE("power: lost after a run has said that it is done, the repository is complete") {
  const RepackLab lab;
  FaultTally tally("killed, finished by the next run, then power lost");
  for (uint64_t operation = 0; operation <= lab.operations(); ++operation) {
    const auto disk = cut_at(lab, RepackLab::fresh_disk(), operation);
    std::string failure = lab.finish(*disk);
    for (uint32_t seed = 0; seed < 3 && failure.empty(); ++seed) {
      const auto found = disk->after_power_loss(seed == 0 ? Survival::nothing : Survival::pages, seed);
      if (!found->tree(RepackLab::kOut).contains("manifest.json")) failure = "the manifest is gone";
      if (failure.empty()) failure = lab.finish(*found);
    }
    tally.add(fmt::format("operation {} of {}", operation, lab.operations()), failure);
  }
}

TEST_CASE("power: lost with four shards in flight, the next run ends with the same bytes") {
  const RepackLab lab(4);
  FaultTally tally("power lost with four shards in flight, random moments");
  const unsigned losses = test::long_faults() ? 3000 : 200;
  for (uint32_t seed = 0; seed < losses; ++seed) {
    std::mt19937 random(seed);
    auto disk = cut_at(lab, RepackLab::fresh_disk(), random() % lab.operations());
    disk = disk->after_power_loss(random_survival(random), random());
    tally.add(fmt::format("seed {} (threads differ from run to run)", seed), lab.finish(*disk));
  }
}

TEST_CASE("power: lost at any operation of three parts, and while they are joined, the result is that of one process") {
  const RepackLab lab(1, 3);
  REQUIRE(lab.whole() == RepackLab().whole());
  FaultTally tally("power lost at every operation of three parts and of their joining");
  for (uint64_t operation = 0; operation < lab.operations(); ++operation) {
    const auto cut = cut_at(lab, RepackLab::fresh_disk(), operation);
    for (uint32_t which = 0; which < std::size(kLosses); ++which) {
      const unsigned seeds = test::long_faults() ? kLosses[which].seeds_long : 1;
      for (uint32_t seed = 0; seed < seeds; ++seed) {
        const auto found = cut->after_power_loss(kLosses[which].survival, seed);
        tally.add(
            fmt::format("operation {} of {}, {}, seed {}", operation, lab.operations(), kLosses[which].name, seed),
            lab.finish(*found));
      }
    }
  }
}

TEST_CASE("power: lost again and again while parts go on and are joined, the last run ends with the same bytes") {
  FaultTally tally("parts: killed or power lost in each of four runs, random moments");
  cut_again_and_again(RepackLab(1, 3), tally, test::long_faults() ? 5000 : 200, true);
}

TEST_CASE("power: the test's own disk forgets what was not synced, and only that") {
  CrashFileSystem disk;
  REQUIRE(disk.make_folders("/a"));
  REQUIRE(disk.sync_folder("/"));
  REQUIRE(format::write_sealed(disk, "/a/sealed", "bytes"));
  {
    const auto file = disk.open_write("/a/young", format::OpenMode::keep).value();
    REQUIRE(file->write(0, format::as_bytes("young")));
    REQUIRE(file->sync());  // its bytes, not its name
  }
  const auto changed = disk.open_write("/a/sealed", format::OpenMode::keep).value();
  REQUIRE(changed->write(1, format::as_bytes("XX")));
  using Tree = std::map<std::string, std::string>;
  CHECK(disk.after_power_loss(Survival::nothing, 0)->tree("/") == Tree{{"a/sealed", "bytes"}});
  CHECK(disk.after_power_loss(Survival::everything, 0)->tree("/") == Tree{{"a/sealed", "bXXes"}, {"a/young", "young"}});
  REQUIRE(disk.rename("/a/young", "/a/sealed"));
  CHECK(disk.after_power_loss(Survival::nothing, 0)->tree("/") == Tree{{"a/sealed", "bytes"}});
  REQUIRE(disk.sync_folder("/a"));
  CHECK(disk.after_power_loss(Survival::nothing, 0)->tree("/") == Tree{{"a/sealed", "young"}});
  std::set<std::string> torn;
  const auto grown = disk.open_write("/a/sealed", format::OpenMode::keep).value();
  REQUIRE(grown->resize(9000));
  REQUIRE(grown->write(5, format::as_bytes(std::string(8995, 'x'))));
  for (uint32_t seed = 0; seed < 64; ++seed)
    torn.insert(disk.after_power_loss(Survival::pages, seed)->tree("/a")["sealed"]);
  CHECK(torn.contains("young"));
  CHECK(torn.contains("young" + std::string(8995, '\0')));
  CHECK(torn.contains("young" + std::string(4091, 'x') + std::string(4904, '\0')));
}

}  // namespace dspack::power_loss_test
