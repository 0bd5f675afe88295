#include "runtime/serve/startup_gate.h"

#include <utility>

#include "runtime/serve/access.h"
#include "runtime/serve/answer_writer.h"
#include "runtime/serve/api.h"
#include "runtime/text/json.h"

namespace dspack::runtime {
namespace {

void refuse(const HttpRequest& request, HttpReply& reply) {
  const ApiError loading = api_error({ErrorKind::conflict, "the model is not loaded; /health says how far it is"});
  send_error(reply, dialect_of(request.path), loading);
}

}  // namespace

class StartupGate::Watch final : public format::Progress {
 public:
  using Progress::note;
  using Progress::started;
  Watch(StartupGate& gate, std::shared_ptr<format::Progress> shown) : gate_(gate), shown_(std::move(shown)) {}

  void started(const format::Work& work) override {
    gate_.done_bytes_ = 0;
    gate_.total_bytes_ = work.total_bytes;
    shown_->started(work);
  }
  void advanced(uint64_t bytes) override {
    gate_.done_bytes_ += bytes;
    shown_->advanced(bytes);
  }
  void item_done() override { shown_->item_done(); }
  void note(format::NoteKind kind, std::string_view text) override { shown_->note(kind, text); }
  void finished() override { shown_->finished(); }

 private:
  StartupGate& gate_;
  std::shared_ptr<format::Progress> shown_;
};

std::shared_ptr<format::Progress> StartupGate::watch(std::shared_ptr<format::Progress> shown) {
  return std::make_shared<Watch>(*this, std::move(shown));
}

bool StartupGate::is_brief(const HttpRequest& request) {
  return request.method != "POST" && request.path != "/machine";
}

void StartupGate::handle(HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
  if (Api* const api = api_; api != nullptr) return api->handle(request, reply);
  if (is_health(request.path)) {
    OrderedJson status = {{"status", "loading"}};
    if (const uint64_t total = total_bytes_; total > 0) {
      status["done_bytes"] = done_bytes_.load();
      status["total_bytes"] = total;
    }
    return reply->send(503, "application/json", json_text(status), {{"Retry-After", "1"}});
  }
  {
    const std::lock_guard lock(mutex_);
    if (api_ == nullptr && !is_closed_ && waiting_bytes_ + request.body.size() <= most_bytes_) {
      waiting_bytes_ += request.body.size();
      waiting_.emplace_back(std::move(request), reply);
      return;
    }
  }
  if (Api* const api = api_; api != nullptr) return api->handle(request, reply);  // opened in the meantime
  refuse(request, *reply);
}

void StartupGate::open(Api& api) {
  std::vector<Request> waiting;
  {
    const std::lock_guard lock(mutex_);
    api_ = &api;
    waiting.swap(waiting_);
  }
  for (auto& each : waiting) {
    const auto [request, reply] = std::move(each);  // moved out, so that the body is freed once handled
    if (!reply->gone().stop_requested()) api.handle(request, reply);
  }
}

void StartupGate::close() {
  std::vector<Request> waiting;
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    waiting.swap(waiting_);
  }
  for (const auto& [request, reply] : waiting)
    refuse(request, *reply);
}

}  // namespace dspack::runtime
