#include "format/source/file_link.h"

namespace dspack::format {

FileLink::Target FileLink::target(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  (void)changed_.wait(lock, stop, [this] { return state_ != State::asking; });
  if (state_ == State::known) return {link_.empty() ? address_ : link_, !link_.empty(), false};
  state_ = State::asking;
  return {address_, false, true};
}

void FileLink::resolved(const std::string& url) {
  const std::lock_guard lock(mutex_);
  link_ = url == address_ ? std::string() : url;
  state_ = State::known;
  changed_.notify_all();
}

void FileLink::failed() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::asking) state_ = State::unknown;
  changed_.notify_all();
}

void FileLink::expired(const std::string& url) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::known || link_ != url) return;  // another thread has seen to it
  link_.clear();
  state_ = State::unknown;
}

}  // namespace dspack::format
