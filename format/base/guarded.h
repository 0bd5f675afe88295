// Where memory or threads run out the standard library throws: here that becomes an error like any other. Main does so
// for all that it calls; whatever a thread of its own runs, or a library of C calls, does it there, since an exception
// that leaves such a function ends the process.
// Threads: thread-safe. Errors: budget.
#pragma once

#include <new>
#include <stdexcept>
#include <system_error>
#include <type_traits>
#include <utility>

#include "format/base/result.h"

namespace dspack {

inline constexpr char kOutOfMemory[] =
    "out of memory: more was needed than this machine, or a limit set for the process, gives";
/// More memory was asked for than the system, or the limit of this process, gives.
[[nodiscard]] Error out_of_memory();
/// A thread or a lock could not be made.
[[nodiscard]] Error out_of_threads(const std::system_error& reason);

/// What `work` returns, a Result.
template <class Work>
[[nodiscard]] std::invoke_result_t<Work&> guarded(Work&& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::length_error&) {  // larger than any memory: of a container that was to grow
    return out_of_memory();
  } catch (const std::system_error& reason) {
    return out_of_threads(reason);
  }
}

}  // namespace dspack
