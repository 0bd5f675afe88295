#include "runtime/serve/startup_gate.h"

#include <utility>

#include "runtime/serve/answer_writer.h"
#include "runtime/serve/api.h"
#include "runtime/serve/json_fields.h"

namespace dspack::runtime {

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

void StartupGate::handle(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  if (Api* const api = api_; api != nullptr) return api->handle(request, reply);
  if (request.path == "/health" || request.path == "/v1/health") {
    OrderedJson status = {{"status", "loading"}};
    if (const uint64_t total = total_bytes_; total > 0) {
      status["done_bytes"] = done_bytes_.load();
      status["total_bytes"] = total;
    }
    return reply->send(503, "application/json", json_text(status), {{"Retry-After", "1"}});
  }
  const Error loading{ErrorKind::conflict, "the model is being loaded; /health says how far"};
  request.path.starts_with("/v1/messages") ? send_anthropic_error(*reply, api_error(loading))
                                           : send_openai_error(*reply, api_error(loading));
}

}  // namespace dspack::runtime
