#include "format/open_files.h"

#include <algorithm>

namespace dspack::format {

OpenFiles::OpenFiles(unsigned limit, Opener opener) : limit_(limit), opener_(std::move(opener)) {
  DSPACK_CHECK(limit > 0, "no file may be open");
}

Result<OpenFiles::Use> OpenFiles::use(uint32_t number) {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto found = by_number_.find(number);
    if (found != by_number_.end() && found->second->file != nullptr) {
      entries_.splice(entries_.begin(), entries_, found->second);
      ++entries_.front().users;
      return Use(*this, entries_.front());
    }
    if (found == by_number_.end() && make_room()) break;
    changed_.wait(lock);
  }
  entries_.push_front({.number = number, .file = nullptr, .users = 1});
  const auto entry = entries_.begin();
  by_number_[number] = entry;
  lock.unlock();
  auto opened = opener_(number);
  lock.lock();
  changed_.notify_all();
  if (!opened) {
    if (!entry->is_forgotten) by_number_.erase(number);
    entries_.erase(entry);
    return opened.error();
  }
  entry->file = std::move(*opened);
  return Use(*this, *entry);
}

bool OpenFiles::make_room() {
  if (entries_.size() < limit_) return true;
  const auto idle = std::find_if(entries_.rbegin(), entries_.rend(), [](const Entry& e) { return e.users == 0; });
  if (idle == entries_.rend()) return false;
  by_number_.erase(idle->number);
  entries_.erase(std::prev(idle.base()));
  return true;
}

void OpenFiles::release(Entry& entry) {
  const std::lock_guard lock(mutex_);
  if (--entry.users != 0) return;
  if (entry.is_forgotten) std::erase_if(entries_, [&entry](const Entry& one) { return &one == &entry; });
  changed_.notify_all();
}

void OpenFiles::forget(uint32_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = by_number_.find(number);
  if (found == by_number_.end()) return;
  const auto entry = found->second;
  by_number_.erase(found);
  entry->is_forgotten = true;
  if (entry->users == 0) entries_.erase(entry);
}

}  // namespace dspack::format
