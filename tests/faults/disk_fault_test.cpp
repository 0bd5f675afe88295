// A disk that is full, or fails, at every operation of a small repack: a clear error, and the next run goes on.
#include <fmt/format.h>

#include <algorithm>

#include "tests/faults/repack_lab.h"
#include "tests/support/fault_tally.h"

namespace dspack::disk_fault_test {

using namespace dspack;
using test::DiskFault;
using test::FaultTally;
using test::FaultyFileSystem;
using test::RepackLab;

namespace {

/// The disk of a run that was killed at an operation.
std::unique_ptr<test::CrashFileSystem> killed_at(const RepackLab& lab, uint64_t operation) {
  auto disk = RepackLab::fresh_disk();
  FaultyFileSystem failing(*disk, {.from = operation});
  (void)lab.run(failing);
  return disk;
}

enum class Damage { removed, cut, flipped };

void damage(test::CrashFileSystem& disk, const format::Path& path, Damage how, size_t at) {
  if (how == Damage::removed) {
    REQUIRE(disk.remove_tree(path));
    return;
  }
  const auto file = disk.open_write(path, format::OpenMode::keep).value();
  if (how == Damage::cut) REQUIRE(file->resize(at));
  if (how == Damage::flipped) {
    std::byte byte{};
    REQUIRE(disk.open_read(path).value()->read(at, {&byte, 1}));
    byte ^= std::byte{1};
    REQUIRE(file->write(at, {&byte, 1}));
  }
}

/// A run with a fault at every operation, and one without it on what that left.
void at_every_operation(const std::string& name, DiskFault fault, uint64_t length) {
  const RepackLab lab;
  FaultTally tally(name);
  uint64_t stopped = 0;
  for (uint64_t operation = 0; operation < lab.operations(); ++operation) {
    const auto disk = RepackLab::fresh_disk();
    fault.from = operation;
    if (length != 0) fault.until = operation + length;
    FaultyFileSystem failing(*disk, fault);
    const auto disturbed = lab.run(failing);
    std::string failure;
    if (disturbed) failure = lab.difference(*disk);
    if (!disturbed) ++stopped;
    if (!disturbed && disturbed.error().kind != fault.kind)
      failure = "stopped for another reason: " + disturbed.error().message;
    if (failure.empty()) failure = lab.finish(*disk);
    tally.add(fmt::format("operation {} of {}", operation, lab.operations()), failure);
  }
  CHECK(stopped > lab.operations() / 2);
}

}  // namespace

TEST_CASE("disk: full from any operation on, the run says so, and goes on when there is space again") {
  at_every_operation("disk full from every operation on", {.kind = ErrorKind::budget, .growing_only = true}, 0);
}

TEST_CASE("disk: failing from any operation on, the next run ends with the same bytes") {
  at_every_operation("I/O errors from every operation on", {.kind = ErrorKind::io}, 0);
}

TEST_CASE("disk: failing at any one operation, the next run ends with the same bytes") {
  at_every_operation("one I/O error, at every operation", {.kind = ErrorKind::io}, 1);
}

TEST_CASE("disk: partial files that are gone, cut or changed before the next run are never sealed") {
  const RepackLab lab;
  FaultTally tally("a partial file removed, cut or changed between two runs");
  std::mt19937 random(1);
  for (uint64_t operation = 0; operation < lab.operations(); operation += test::long_faults() ? 1 : 7) {
    const auto killed = killed_at(lab, operation);
    for (const auto& [path, bytes] : killed->tree(RepackLab::kOut)) {
      if (!path.starts_with(".reshard/part/") || bytes.empty()) continue;
      for (const Damage how : {Damage::removed, Damage::cut, Damage::flipped}) {
        const auto disk = killed->after_power_loss(test::Survival::everything, 0);
        const size_t at = random() % bytes.size();
        damage(*disk, format::Path(RepackLab::kOut) / path, how, at);
        const auto outcome = lab.run(*disk);
        std::string failure = outcome ? lab.difference(*disk) : lab.wrongly_sealed(*disk);
        const std::string name = path.substr(std::string_view(".reshard/part/").size());
        if (!outcome && outcome.error().message.find(name) == std::string::npos)
          failure = "the file is not named: " + outcome.error().message;
        tally.add(fmt::format("operation {}, {}, damage {} at byte {}", operation, path, static_cast<int>(how), at),
                  failure);
      }
    }
  }
}

TEST_CASE("disk: what lies in partial files is not asked for again when a run goes on") {
  const RepackLab lab;
  FaultTally tally("a run goes on, on a disk with just enough space");
  const auto disk = RepackLab::fresh_disk();
  disk->set_capacity(0);
  const auto refused = lab.run(*disk);
  REQUIRE_FALSE(refused.has_value());
  const std::string& message = refused.error().message;
  // Of an empty disk all that is needed is wanted: "34.3 kB (34321 bytes) more are wanted".
  const size_t exact = message.find('(');
  REQUIRE(exact != std::string::npos);
  const uint64_t need = std::stoull(message.substr(exact + 1));
  // Needed a second time: the bytes of the one shard that was in flight. The headers' pages and the journal's are ours.
  uint64_t slack = (lab.outlook().plan.files.size() + 4) * 4096;
  for (const format::CheckpointFile& shard : lab.outlook().source.files())
    slack = std::max(slack, (lab.outlook().plan.files.size() + 4) * 4096 + shard.size_bytes);
  for (uint64_t operation = 0; operation < lab.operations(); ++operation) {
    const auto killed = killed_at(lab, operation);
    killed->set_capacity(need + slack);
    tally.add(fmt::format("operation {}", operation), lab.finish(*killed));
  }
}

}  // namespace dspack::disk_fault_test
