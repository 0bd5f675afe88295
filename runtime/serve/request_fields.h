// What requests of all APIs have in common: the body's JSON, sampling, stop strings.
// Threads: pure functions. Errors: invalid, naming the field.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/serve/answer_request.h"
#include "runtime/serve/json_fields.h"

namespace dspack::runtime {

inline constexpr uint64_t kMostTokens = 1U << 24U;  // of an answer

/// An object, read strictly.
[[nodiscard]] Result<OrderedJson> parse_body(std::string_view body);
/// A string, or a list of strings; none where the field is null.
[[nodiscard]] Result<std::vector<std::string>> read_stops(const OrderedJson* field, const char* name);
/// Temperature and the like, seed, "model" and "stream". Without a seed one is drawn.
[[nodiscard]] Result<void> read_sampling(const JsonFields& fields, AnswerRequest& request);

}  // namespace dspack::runtime
