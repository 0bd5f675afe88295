// Forms of answers that wait to be compiled. Clients come in turn: the next form is of the client that has waited
// longest since its last one, so that one with many forms keeps nobody waiting for more than one of them.
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
  std::stop_token gone;  // nobody waits for it any more
};

class FormQueue {
 public:
  static constexpr size_t kMostOfClient = 32;
  static constexpr size_t kMost = 256;

  /// Takes the form, if there is room for it; those that nobody waits for any more make room.
  [[nodiscard]] bool push(WantedForm& wanted);
  /// Waits for the next one; nullopt: stopped.
  [[nodiscard]] std::optional<WantedForm> take(const std::stop_token& stop);

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::list<WantedForm> waiting_;
  std::map<std::string, uint64_t> turns_;  // when clients that wait had their last turn
  uint64_t turn_ = 0;
};

}  // namespace dspack::runtime
