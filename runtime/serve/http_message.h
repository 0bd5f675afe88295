// Converts a request from Boost.Beast's form to the handlers' form.
// Threads: thread-safe (a pure function). Errors: none.
#pragma once

#include <boost/beast/http.hpp>

#include "runtime/serve/http_server.h"

namespace dspack::runtime {

[[nodiscard]] HttpRequest request_of(boost::beast::http::request<boost::beast::http::string_body> message);

}  // namespace dspack::runtime
