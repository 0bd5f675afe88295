// Where a file's own address has led: asked once, used until it expires. Resolving is what servers limit; ranges of
// what was resolved are free. Threads: thread-safe; while one thread asks the file's own address, others wait. Errors:
// none.
#pragma once

#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <string>

namespace dspack::format {

class FileLink {
 public:
  explicit FileLink(std::string address) : address_(std::move(address)) {}

  /// What to ask. `resolves`: it is the file's own address, for the first time, and others wait for what comes of it:
  /// then resolved() or failed() must follow.
  struct Target {
    std::string url;
    bool is_link = false;
    bool resolves = false;
  };
  [[nodiscard]] Target target(const std::stop_token& stop);
  /// The answer came from here.
  void resolved(const std::string& url);
  void failed();
  /// A link that is of no use any more.
  void expired(const std::string& url);

  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  enum class State { unknown, asking, known };

  std::string address_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  State state_ = State::unknown;  // guarded by mutex_
  std::string link_;              // guarded by mutex_; empty: the address itself answers
};

}  // namespace dspack::format
