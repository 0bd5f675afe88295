// The parts of HTTP headers and addresses that the programs need. All input is untrusted.
// Threads: thread-safe (pure functions). Source: RFC 9110, sections 8.8.3 (ETag) and 14.4 (Content-Range); RFC 8288
// (Link); draft-ietf-httpapi-ratelimit-headers-08 (RateLimit), as the Hub writes it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/base/ids.h"

namespace dspack::format {

/// "bytes 0-7/100": the range [0, 8) of a file of 100 bytes.
struct ContentRange {
  ByteRange range;
  uint64_t total = 0;
};

/// nullopt: not of that form, or a range outside the file.
[[nodiscard]] std::optional<ContentRange> parse_content_range(std::string_view text);

/// "bytes */100", which comes with a refused range (416): the size of the file. nullopt: not of that form.
[[nodiscard]] std::optional<uint64_t> parse_unsatisfied_range(std::string_view text);

/// `"api";r=0;t=55`, for one or several limits: the seconds until all those that are used up (r=0) have been reset.
/// nullopt: none is used up, or not of that form.
[[nodiscard]] std::optional<uint64_t> parse_rate_limit(std::string_view text);

/// The target of `<URL>; rel="next"` among the links of a Link header; empty: there is none.
[[nodiscard]] std::string parse_next_link(std::string_view text);

/// Without the weak tag's mark (W/) and without quotes.
[[nodiscard]] std::string strip_etag(std::string_view etag);

/// Without spaces and line ends at either end.
[[nodiscard]] std::string_view trim_header(std::string_view text);

/// The absolute URL of a Location, if it keeps the scheme, host and port of `url`; nullopt: another one, or none.
[[nodiscard]] std::optional<std::string> same_host_url(std::string_view url, std::string_view location);

/// Whether a redirect from `url` to `location` leaves its scheme, host and port; true if in doubt.
[[nodiscard]] bool leads_elsewhere(std::string_view url, std::string_view location);

/// By the scheme, whose case does not matter: "HTTPS://..."
[[nodiscard]] bool is_https(std::string_view url);
[[nodiscard]] bool is_http(std::string_view url);

/// Whether nobody on the way can read what is sent there: over https, or within this machine (localhost, 127.x.x.x,
/// ::1).
[[nodiscard]] bool is_private_line(std::string_view url);

/// 302 of "HTTP/1.1 302 Found"; 0: not of that form.
[[nodiscard]] unsigned status_in(std::string_view status_line);

/// Whether two texts, such as header names, are the same apart from upper and lower case.
[[nodiscard]] bool equal_ignoring_case(std::string_view a, std::string_view b);

/// A path as part of a URL: everything but unreserved characters and "/" percent-encoded.
[[nodiscard]] std::string url_path(std::string_view path);
/// The same for one component of a path: "/" is encoded, too.
[[nodiscard]] std::string url_component(std::string_view text);

/// "http://user:secret@host/x" without the secret: "http://host/x".
[[nodiscard]] std::string without_password(std::string_view url);
/// Also without query and fragment, which may hold a signature.
[[nodiscard]] std::string public_url(std::string_view url);

}  // namespace dspack::format
