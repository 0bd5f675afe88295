#include "tests/support/stream_order.h"

#include <vector>

#include "format/base/check.h"

namespace dspack::test {

StreamOrder::StreamId StreamOrder::add_stream() {
  streams_[next_];
  return next_++;
}

void StreamOrder::remove_stream(StreamId stream) {
  streams_.erase(stream);
}

void StreamOrder::add(StreamId stream, Work work) {
  streams_.at(stream).push_back({.work = std::move(work), .marked = nullptr, .waits = nullptr});
}

std::shared_ptr<StreamOrder::Event> StreamOrder::mark(StreamId stream) {
  auto event = std::make_shared<Event>();
  event->stream = stream;
  streams_.at(stream).push_back({.work = {}, .marked = event, .waits = nullptr});
  return event;
}

void StreamOrder::wait(StreamId stream, std::shared_ptr<Event> event) {
  streams_.at(stream).push_back({.work = {}, .marked = nullptr, .waits = std::move(event)});
}

bool StreamOrder::can_run(const Items& items) const {
  return !items.empty() && (items.front().waits == nullptr || items.front().waits->is_reached);
}

void StreamOrder::run_front(Items& items) {
  const Item item = std::move(items.front());
  items.pop_front();
  if (item.work) item.work();
  if (item.marked == nullptr) return;
  item.marked->is_reached = true;
  item.marked->when = std::chrono::steady_clock::now();
}

StreamOrder::Items& StreamOrder::needed_by(StreamId stream) {
  for (size_t steps = 0; steps <= streams_.size(); ++steps) {
    const auto found = streams_.find(stream);
    DSPACK_CHECK(found != streams_.end() && !found->second.empty(), "a stream waits for what will never be reached");
    if (can_run(found->second)) return found->second;
    stream = found->second.front().waits->stream;
  }
  DSPACK_CHECK(false, "streams wait for each other");
  return streams_.begin()->second;
}

void StreamOrder::run_one_of_all() {
  std::vector<Items*> able;
  for (auto& [id, items] : streams_) {
    if (can_run(items)) able.push_back(&items);
  }
  if (!able.empty()) run_front(*able[random_() % able.size()]);
}

void StreamOrder::run_while(StreamId stream, const std::function<bool()>& goes_on) {
  const bool others_lag = random_() % 2 == 0;
  while (goes_on()) {
    if (!others_lag) run_one_of_all();
    if (goes_on()) run_front(needed_by(stream));
  }
}

void StreamOrder::run_all(StreamId stream) {
  run_while(stream, [&] { return !streams_.at(stream).empty(); });
}

void StreamOrder::run_until(const Event& event) {
  run_while(event.stream, [&] { return !event.is_reached; });
}

void StreamOrder::run_some() {
  constexpr uint64_t kMax = 4;
  for (uint64_t left = random_() % kMax; left > 0; --left)
    run_one_of_all();
}

}  // namespace dspack::test
