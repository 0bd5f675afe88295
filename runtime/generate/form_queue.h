// Queue of forms that wait to be compiled. Clients take turns: the next form is of the client whose last turn is
// longest ago, so a client with many forms delays another by at most one of them.
// Threads: thread-safe. Errors: none.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>

#include "runtime/generate/constraint_compiler.h"

namespace dspack::runtime {

struct WantedForm {
  std::string form;
  std::string client;
  ConstraintCompiler::Done done;
  std::stop_token gone;  // requested once the result is not needed any more
};

class FormQueue {
 public:
  static constexpr size_t kMaxOfClient = 32;
  static constexpr size_t kMax = 256;

  /// Queues the form if there is room; abandoned forms make room. False: no room, and `wanted` is unchanged.
  [[nodiscard]] bool push(WantedForm& wanted);
  /// Blocks until there is a form, and takes it; nullopt: stopped.
  [[nodiscard]] std::optional<WantedForm> take(const std::stop_token& stop);

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::list<WantedForm> waiting_;
  std::map<std::string, uint64_t> turns_;  // last turn of each waiting client
  uint64_t turn_ = 0;
};

}  // namespace dspack::runtime
