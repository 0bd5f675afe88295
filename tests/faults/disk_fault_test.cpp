// A disk that is full, or fails, at every operation of a small repack: a clear error, and the next run goes on.
#include <fmt/format.h>

#include "tests/faults/repack_lab.h"
#include "tests/support/fault_tally.h"

using namespace dspack;
using test::DiskFault;
using test::FaultTally;
using test::FaultyFileSystem;
using test::RepackLab;

namespace {

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
