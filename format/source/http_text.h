// A whole small file in one answer.
// Threads: thread-safe. Errors: as PatientClient; budget (larger than it may be).
#pragma once

#include <stop_token>
#include <string>

#include "format/source/patient_client.h"

namespace dspack::format {

struct HttpText {
  std::string text;
  HttpResponse head;
};

/// What `request` leads to, which has no range. Longer than `limit_bytes`: budget.
[[nodiscard]] Result<HttpText> get_text(PatientClient& client, const HttpRequest& request, uint64_t limit_bytes,
                                        const std::stop_token& stop, const ExplainFailure& explain = {});

}  // namespace dspack::format
