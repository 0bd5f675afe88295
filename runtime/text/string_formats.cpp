#include "runtime/text/string_formats.h"

#include <algorithm>
#include <array>

namespace dspack::runtime {
namespace {

// Days of the calendar: 29 February only in leap years (RFC 3339, appendix C).
#define DATE                                                                                      \
  "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|" \
  "02-(?:0[1-9]|1\\d|2[0-8]))|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
// Without leap seconds, which are valid only at certain times.
#define TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,20}[A-Za-z0-9])?"
#define BYTE "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define GROUP "[0-9A-Fa-f]{1,4}"
#define UNRESERVED "[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}"

struct Format {
  std::string_view name;
  std::string_view pattern;  // empty: any string
};

constexpr std::array kFormats = {
    Format{"date", "^" DATE "$"},
    Format{"time", "^" TIME "$"},
    Format{"date-time", "^" DATE "T" TIME "$"},
    Format{"duration",
           "^P(?:\\d{1,9}W|\\d{1,9}Y(?:\\d{1,9}M(?:\\d{1,9}D)?)?|\\d{1,9}M(?:\\d{1,9}D)?|\\d{1,9}D|"
           "(?:\\d{1,9}D)?T(?:\\d{1,9}H(?:\\d{1,9}M(?:\\d{1,9}S)?)?|\\d{1,9}M(?:\\d{1,9}S)?|\\d{1,9}S))$"},
    Format{"email", "^[A-Za-z0-9_+-]+(?:\\.[A-Za-z0-9_+-]+)*@" LABEL "(?:\\." LABEL ")*\\.[A-Za-z]{2,10}$"},
    Format{"idn-email", "^[A-Za-z0-9_+-]+(?:\\.[A-Za-z0-9_+-]+)*@" LABEL "(?:\\." LABEL ")*\\.[A-Za-z]{2,10}$"},
    Format{"hostname", "^" LABEL "(?:\\." LABEL "){0,5}\\.[A-Za-z]{2,10}$"},
    Format{"idn-hostname", "^" LABEL "(?:\\." LABEL "){0,5}\\.[A-Za-z]{2,10}$"},
    Format{"ipv4", "^" BYTE "(?:\\." BYTE "){3}$"},
    Format{"ipv6", "^(?:(?:" GROUP ":){7}" GROUP "|::(?:(?:" GROUP ":){0,5}" GROUP ")?|" GROUP "::(?:(?:" GROUP
                   ":){0,4}" GROUP ")?|" GROUP ":" GROUP "::(?:(?:" GROUP ":){0,3}" GROUP ")?)$"},
    Format{"uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
    Format{"uri", "^[A-Za-z][A-Za-z0-9+.-]*://" LABEL "(?:\\." LABEL ")*(?::[1-9]\\d{0,3})?(?:/(?:" UNRESERVED
                  ")*)*(?:\\?(?:" UNRESERVED "|[/?])*)?(?:#(?:" UNRESERVED "|[/?])*)?$"},
    Format{"uri-reference",
           "^(?:/(?:" UNRESERVED ")*)+(?:\\?(?:" UNRESERVED "|[/?])*)?(?:#(?:" UNRESERVED "|[/?])*)?$"},
    Format{"iri", "^[A-Za-z][A-Za-z0-9+.-]*://" LABEL "(?:\\." LABEL ")*(?::[1-9]\\d{0,3})?(?:/(?:" UNRESERVED ")*)*$"},
    Format{"iri-reference", "^(?:/(?:" UNRESERVED ")*)+$"},
    Format{"uri-template", "^(?:/(?:[A-Za-z0-9._~-]|\\{[A-Za-z0-9_]+\\})*)+$"},
    Format{"json-pointer", "^(?:/(?:[^~/]|~[01])*)*$"},
    Format{"relative-json-pointer", "^(?:0|[1-9]\\d*)(?:#|(?:/(?:[^~/]|~[01])*)*)$"},
    Format{"regex", "^[A-Za-z0-9 _-]*$"},
    Format{"byte", "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"},
    // Formats of OpenAPI and pydantic that do not restrict a string's characters, and OpenAPI's formats of numbers,
    // which describe a program's representation.
    Format{"binary", ""},
    Format{"password", ""},
    Format{"path", ""},
    Format{"file-path", ""},
    Format{"directory-path", ""},
    Format{"int32", ""},
    Format{"int64", ""},
    Format{"float", ""},
    Format{"double", ""},
    // Zod's formats, with its patterns.
    Format{"guid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
    Format{"base64", "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"},
    Format{"base64url", "^[A-Za-z0-9_-]*$"},
    Format{"cuid", "^[cC][0-9a-z]{8,}$"},
    Format{"cuid2", "^[0-9a-z]+$"},
    Format{"ulid", "^[0-7][0-9A-HJKMNP-TV-Z]{25}$"},
    Format{"nanoid", "^[A-Za-z0-9_-]{21}$"},
    Format{"e164", "^\\+[1-9]\\d{6,14}$"},
    Format{"cidrv4", "^" BYTE "(?:\\." BYTE "){3}/(?:[12]?\\d|3[0-2])$"},
    Format{"ipv4network", "^" BYTE "(?:\\." BYTE "){3}/(?:[12]?\\d|3[0-2])$"},
};
#undef DATE
#undef TIME
#undef LABEL
#undef BYTE
#undef GROUP
#undef UNRESERVED

const Format* find_format(std::string_view name) {
  const auto found = std::ranges::find(kFormats, name, &Format::name);
  return found == kFormats.end() ? nullptr : found;
}

}  // namespace

std::vector<std::string_view> known_formats() {
  std::vector<std::string_view> names;
  for (const Format& format : kFormats)
    names.push_back(format.name);
  return names;
}

bool is_known_format(std::string_view name) {
  return find_format(name) != nullptr;
}

std::optional<std::string_view> pattern_of_format(std::string_view name) {
  const Format* format = find_format(name);
  if (format == nullptr || format->pattern.empty()) return std::nullopt;
  return format->pattern;
}

}  // namespace dspack::runtime
