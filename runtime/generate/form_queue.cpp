#include "runtime/generate/form_queue.h"

#include <algorithm>
#include <utility>

namespace dspack::runtime {

bool FormQueue::push(WantedForm& wanted) {
  const std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [](const WantedForm& each) { return each.gone.stop_requested(); });
  const auto own = std::ranges::count(waiting_, wanted.client, &WantedForm::client);
  if (waiting_.size() >= kMax || static_cast<size_t>(own) >= kMaxOfClient) return false;
  waiting_.push_back(std::move(wanted));
  changed_.notify_one();
  return true;
}

std::optional<WantedForm> FormQueue::take(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) return std::nullopt;
  const auto last_turn = [this](const WantedForm& each) {
    const auto found = turns_.find(each.client);
    return found == turns_.end() ? 0 : found->second;
  };
  const auto next = std::ranges::min_element(waiting_, {}, last_turn);
  WantedForm taken = std::move(*next);
  waiting_.erase(next);
  turns_[taken.client] = ++turn_;
  // Forgets clients that have nothing queued, except this one, which may come again at once.
  std::erase_if(turns_, [&](const auto& turn) {
    return turn.first != taken.client && std::ranges::find(waiting_, turn.first, &WantedForm::client) == waiting_.end();
  });
  return taken;
}

}  // namespace dspack::runtime
