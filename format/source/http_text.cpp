#include "format/source/http_text.h"

#include <fmt/format.h>

namespace dspack::format {

Result<HttpText> get_text(PatientClient& client, const HttpRequest& request, uint64_t limit_bytes,
                          const std::stop_token& stop, const ExplainFailure& explain) {
  constexpr uint64_t kNoProgress = 0;
  std::string text;
  const ByteSink keep = [&](std::span<const std::byte> bytes) -> Result<void> {
    if (text.size() + bytes.size() > limit_bytes) {
      return Error{ErrorKind::budget, fmt::format("{}: more than the {} bytes that such a file may have",
                                                  without_password(request.url), limit_bytes)};
    }
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  };
  const auto anew = [&] {
    text.clear();
    return request;
  };
  TRY_ASSIGN(HttpResponse head,
             client.get({.next = anew, .sink = keep, .received = kNoProgress, .explain = explain}, stop));
  return HttpText{std::move(text), std::move(head)};
}

}  // namespace dspack::format
