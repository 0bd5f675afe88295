// Failures: the part of runtime.h that is the same for every implementation of a GPU.
#include "kernels/cuda/hardware/runtime.h"

#include <atomic>
#include <mutex>
#include <string>

namespace dspack::gpu {
namespace {

// Process-wide: a run that has lost one of its GPUs has lost all. The flag is read before every launch, the error once.
struct FailureState {
  std::atomic<bool> has_failed{false};
  std::mutex mutex;
  std::optional<Error> first;  // guarded by mutex
};

FailureState& state() {
  static FailureState the_state;
  return the_state;
}

}  // namespace

std::optional<Error> failure() {
  const std::lock_guard lock(state().mutex);
  return state().first;
}

bool has_failed() {
  return state().has_failed;
}

void fail(const Error& error) {
  const std::lock_guard lock(state().mutex);
  if (!state().first) state().first = error;
  state().has_failed = true;
}

Error refusal_to_pin(uint64_t bytes, std::string_view reason) {
  return {ErrorKind::budget,
          "cannot pin " + std::to_string(bytes) + " bytes of the host's memory for the GPU: " + std::string(reason) +
              "; use less (--ram, --experts), or allow more: ulimit -l, a container's limit of memory"};
}

void forget_failure() {
  const std::lock_guard lock(state().mutex);
  state().first.reset();
  state().has_failed = false;
}

}  // namespace dspack::gpu
