#include "format/hub/refusal.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "format/http/answer.h"
#include "format/http/headers.h"
#include "format/hub/name.h"

namespace dspack::format {
namespace {

constexpr char kSignIn[] = "set HF_TOKEN to a token of yours, or run \"hf auth login\"";

/// "(HTTP 401: the server's message)"
std::string answer_of(const HttpFailure& failure) {
  return failure.words.empty() ? fmt::format("(HTTP {})", failure.status)
                               : fmt::format("(HTTP {}: {})", failure.status, failure.words);
}

std::string gated(const HubRequest& asked, const std::string& page) {
  return asked.has_token ? fmt::format(
                               "is gated, and the account of your token has no access yet: open {} in a "
                               "browser, accept its terms there (some owners grant access by hand), and see "
                               "to it that the token may read gated repositories",
                               page)
                         : fmt::format("is gated: open {} in a browser and accept its terms, then {}", page, kSignIn);
}

std::string no_repository(const HubRequest& asked) {
  return asked.has_token
             ? fmt::format(
                   "there is no such repository on {}, or it is private and your token may not read it: check "
                   "the spelling, or take a token of an account that has access",
                   asked.endpoint)
             : fmt::format(
                   "there is no such repository on {}, or it is private: check the spelling; for a private "
                   "one {}",
                   asked.endpoint, kSignIn);
}

std::string no_revision(const HubRequest& asked, const std::string& page) {
  return is_commit(asked.revision)
             ? fmt::format(
                   "has no commit {}: it was mistyped, or the history was rewritten since; "
                   "{}/commits/main lists the commits",
                   asked.revision, page)
             : fmt::format("has no branch, tag or commit \"{}\"; {}/tree/main lists them", asked.revision, page);
}

std::string denied(const HubRequest& asked, const HttpFailure& failure) {
  constexpr long kUnauthorized = 401;
  if (!asked.has_token) return fmt::format("access is denied: is it private or gated? If so, {}", kSignIn);
  return failure.status == kUnauthorized
             ? "the Hub does not accept your token: it is wrong or has expired. Set HF_TOKEN to a good one, or run "
               "\"hf auth login\""
             : "access is denied to your token: if it is a fine-grained one, it must name this repository (set "
               "HF_TOKEN to one that may read it)";
}

/// Whether a refusal is about storage, not about the token: "Private repository storage limit reached", "Your storage
/// patterns tripped our internal systems", ...
bool is_about_room(long status, std::string words) {
  constexpr std::array kStatuses{402L, 403L, 413L, 507L};
  std::ranges::transform(words, words.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool names_it = words.find("storage") != std::string::npos || words.find("quota") != std::string::npos;
  return names_it && std::ranges::find(kStatuses, status) != kStatuses.end();
}

}  // namespace

Error explain_refusal(const HubRequest& request, const HttpFailure& failure) {
  HubRequest asked = request;
  asked.endpoint = without_password(request.endpoint);
  const std::string page = hub_page_url(asked.endpoint, asked.repository);
  const auto refusal = [&](const std::string& reason) {
    return Error{ErrorKind::network, fmt::format("{}: {} {}", page, reason, answer_of(failure))};
  };
  const bool names_token = failure.words.find("redentials") != std::string::npos;
  if (asked.has_token && failure.status == 401 && names_token) return refusal(denied(asked, failure));
  if (failure.error_code == "GatedRepo") return refusal(gated(asked, page));
  if (failure.error_code == "RepoNotFound") return refusal(no_repository(asked));
  if (failure.error_code == "RevisionNotFound") return refusal(no_revision(asked, page));
  if ((failure.status == 401 || failure.status == 403) && !failure.link_expired) return refusal(denied(asked, failure));
  return failure.error;
}

std::string words_of(const HttpResponse& answer) {
  return answer.words.empty() ? fmt::format("HTTP {}", answer.status)
                              : fmt::format("HTTP {}: {}", answer.status, answer.words);
}

Error explain_write_refusal(const HubRequest& request, const HttpResponse& answer, std::string_view called) {
  const std::string words = words_of(answer);
  const auto error = [&](ErrorKind kind, std::string_view what) {
    return Error{kind, fmt::format("{}: {} ({})", called, what, words)};
  };
  if (answer.status >= 300 && answer.status < 400) {
    return error(ErrorKind::network, fmt::format("it answers with a redirect to \"{}\"; if the repository was renamed, "
                                                 "give its new name",
                                                 refusal_text(answer.location)));
  }
  if (is_about_room(answer.status, words)) {
    return error(
        ErrorKind::network,
        fmt::format("{} has no room left on the Hub, or no more is granted; free some, or ask the Hub for more, "
                    "and run the command again: what has been sent is kept",
                    request.repository.substr(0, request.repository.find('/'))));
  }
  switch (answer.status) {
    case 401:
      return error(ErrorKind::network,
                   !request.has_token ? "it wants a token; set HF_TOKEN to one with write access"
                                      : "it does not accept the token; set HF_TOKEN to a valid one with write access");
    case 403:
      return error(ErrorKind::network, fmt::format("the token has no right to do this; set HF_TOKEN to one with write "
                                                   "access to {}",
                                                   request.repository));
    case 404: return error(ErrorKind::not_found, "not found");
    case 409:
    case 412: return error(ErrorKind::conflict, "conflicts with what is there");
    default: return error(ErrorKind::network, "refused");
  }
}

}  // namespace dspack::format
