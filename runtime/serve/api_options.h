// Settings of the API: who may ask, the model that is served, limits and defaults of requests.
// Threads: plain values. Errors: none.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "runtime/generate/sampler.h"
#include "runtime/text/chat_message.h"

namespace dspack::runtime {

struct ApiOptions {
  std::string api_key;       // empty: no key is required
  std::string host;          // name or address that it is served under
  std::string allow_origin;  // origin of pages that may send requests, or "*"; empty: only this server's own
  std::string model;         // name of the model
  uint32_t context = 0;      // positions per conversation
  uint32_t vocab = 0;
  uint32_t layers = 0;  // layers in a token's pass
  std::vector<uint32_t> end_tokens;
  uint64_t request_bytes = 0;                              // memory of all requests, without their bodies
  uint64_t cache_memory_bytes = 0;                         // limit of the prefix cache
  SamplerOptions sampling;                                 // defaults for requests
  OrderedJson template_arguments = OrderedJson::object();  // defaults for requests
  std::function<std::tm()> clock;                          // for templates that print the date
};

}  // namespace dspack::runtime
