#include "runtime/generate/waiting_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <set>
#include <utility>

namespace dspack::runtime {
namespace {

constexpr size_t kMaxRemembered = 1024;  // clients with nothing in the queue

}  // namespace

std::vector<WaitingQueue::Request> WaitingQueue::requests() const {
  std::vector<Request> all;
  for (const Generation& each : waiting_) {
    if (all.empty() || all.back().number != each.request)
      all.push_back({.number = each.request, .client = &each.client});
    ++all.back().generations;
  }
  return all;
}

/// Takes matching generations; both parts keep their order.
template <class Is>
std::vector<Generation> WaitingQueue::take_if(Is is) {
  std::vector<Generation> taken;
  taken.reserve(static_cast<size_t>(std::ranges::count_if(waiting_, is)));  // nothing throws after this
  const auto is_left = [&is](const Generation& each) { return !is(each); };
  auto kept = waiting_.begin();
  for (Generation& each : waiting_) {
    if (!is_left(each))
      taken.push_back(std::move(each));
    else if (&*kept != &each)
      *kept++ = std::move(each);
    else
      ++kept;
  }
  waiting_.erase(kept, waiting_.end());
  return taken;
}

Result<std::vector<Generation>> WaitingQueue::add(std::vector<Generation> request) {
  if (request.empty()) return std::vector<Generation>();
  if (request.size() > kMaxWaiting) {
    return Error{ErrorKind::invalid,
                 fmt::format("a request for {} answers, of {} at most", request.size(), kMaxWaiting)};
  }
  const std::string client = request.front().client;
  std::vector<Request> left = requests();
  const size_t before = left.size();
  size_t generations = waiting_.size() + request.size();
  std::set<uint64_t> give_way;
  while (left.size() >= most_requests_ || generations > kMaxWaiting) {
    // Amount per client of what exceeds its limit: requests, or generations; for this client with the new request.
    const bool are_requests = left.size() >= most_requests_;
    std::map<std::string_view, uint64_t> held;
    held[client] += are_requests ? 1 : request.size();
    for (const Request& each : left)
      held[*each.client] += are_requests ? 1 : each.generations;
    const auto fullest = std::ranges::max_element(held, {}, [](const auto& each) { return each.second; });
    if (fullest->second <= held[client]) {
      return Error{ErrorKind::budget, fmt::format("{} requests are waiting already, for {} answers; {} may, for {}",
                                                  before, waiting_.size(), most_requests_, kMaxWaiting)};
    }
    const auto latest =
        std::find_if(left.rbegin(), left.rend(), [&](const Request& each) { return *each.client == fullest->first; });
    generations -= latest->generations;
    give_way.insert(latest->number);
    left.erase(std::next(latest).base());
  }
  std::vector<Generation> gone = take_if([&](const Generation& each) { return give_way.contains(each.request); });
  ++requests_;
  const auto waited = static_cast<std::ptrdiff_t>(waiting_.size());
  try {
    for (Generation& each : request) {
      each.request = requests_;
      waiting_.push_back(std::move(each));
    }
  } catch (const std::bad_alloc&) {
    waiting_.erase(waiting_.begin() + waited, waiting_.end());  // all of a request or none
    throw;
  }
  return gone;
}

std::optional<Generation> WaitingQueue::take(const std::function<uint32_t(const std::string& client)>& places) {
  if (waiting_.empty()) return std::nullopt;
  const auto precedence = [&](const Generation& each) {
    const auto turn = last_turns_.find(each.client);
    return std::pair(places(each.client), turn == last_turns_.end() ? 0 : turn->second);
  };
  // The first among equals.
  const auto next = std::ranges::min_element(waiting_, {}, precedence);
  last_turns_[next->client] = ++turns_;
  std::optional<Generation> taken = std::move(*next);
  waiting_.erase(next);
  if (last_turns_.size() > waiting_.size() + kMaxRemembered) {
    std::erase_if(last_turns_, [this](const auto& turn) {
      return std::ranges::none_of(waiting_, [&](const Generation& each) { return each.client == turn.first; });
    });
  }
  return taken;
}

std::vector<Generation> WaitingQueue::take_gone() {
  return take_if([](const Generation& each) { return each.gone.stop_requested(); });
}

std::vector<Generation> WaitingQueue::take_all() {
  return take_if([](const Generation& /*each*/) { return true; });
}

uint32_t WaitingQueue::wanted() const {
  return static_cast<uint32_t>(
      std::ranges::count_if(waiting_, [](const Generation& each) { return !each.gone.stop_requested(); }));
}

uint64_t requests_of(std::span<const Generation> generations) {
  uint64_t count = 0, last = 0;
  for (const Generation& each : generations)
    if (std::exchange(last, each.request) != each.request) ++count;
  return count;
}

}  // namespace dspack::runtime
