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

/// nullopt: not of that form, or a range that does not lie in the file.
[[nodiscard]] std::optional<ContentRange> parse_content_range(std::string_view text);

/// "bytes */100", which comes with a refused range (416): the size of the file. nullopt: not of that form.
[[nodiscard]] std::optional<uint64_t> parse_unsatisfied_range(std::string_view text);

/// `"api";r=0;t=55`, of one or several limits: the seconds until the last of those that are used up (r=0) is reset.
/// nullopt: none is, or not of that form.
[[nodiscard]] std::optional<uint64_t> parse_rate_limit(std::string_view text);

/// The target of `<URL>; rel="next"` among the links of a Link header; empty: there is none.
[[nodiscard]] std::string parse_next_link(std::string_view text);

/// Without the mark of a weak tag and without quotes.
[[nodiscard]] std::string strip_etag(std::string_view etag);

/// Without spaces and line ends on either side.
[[nodiscard]] std::string_view trim_header(std::string_view text);

/// Where a Location leads, if it stays with the scheme, host and port of `url`; nullopt: elsewhere, or nowhere.
[[nodiscard]] std::optional<std::string> same_host_url(std::string_view url, std::string_view location);

/// Whether a redirect from `url` to `location` leaves its scheme, host and port; in doubt it does.
[[nodiscard]] bool leads_elsewhere(std::string_view url, std::string_view location);

/// By the scheme, which is written as one likes: "HTTPS://..."
[[nodiscard]] bool is_https(std::string_view url);
[[nodiscard]] bool is_http(std::string_view url);

/// Whether what is sent there can be read by nobody on the way: by https, or on this machine alone (localhost,
/// 127.x.x.x, ::1).
[[nodiscard]] bool is_private_line(std::string_view url);

/// 302 of "HTTP/1.1 302 Found"; 0: not of that form.
[[nodiscard]] unsigned status_in(std::string_view status_line);

/// Whether two names of headers, say, are the same but for upper and lower case.
[[nodiscard]] bool equal_ignoring_case(std::string_view a, std::string_view b);

/// A path as part of a URL: everything but unreserved characters and "/" percent-encoded.
[[nodiscard]] std::string url_path(std::string_view path);
/// The same of one component of a path: "/" too.
[[nodiscard]] std::string url_component(std::string_view text);

/// "http://user:secret@host/x" as it may be shown: "http://host/x".
[[nodiscard]] std::string without_password(std::string_view url);
/// Without query and fragment either, which may hold a signature.
[[nodiscard]] std::string public_url(std::string_view url);

}  // namespace dspack::format
