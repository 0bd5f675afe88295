#include "reshard/verbs/inspect_html.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/digest.h"
#include "reshard/run/other_loaders.h"
#include "reshard/verbs/arrangement.h"
#include "reshard/verbs/inspect_data.h"
#include "reshard/verbs/inspect_page.h"

namespace dspack::reshard {
namespace {

using format::Json;

/// As a content security policy names a script or style: sha256-<base64>.
std::string policy_digest(std::string_view text) {
  const format::Digest digest = format::sha256(text);
  std::array<unsigned char, 4 * ((sizeof(digest.bytes) + 2) / 3) + 1> base64{};
  const int length = EVP_EncodeBlock(base64.data(), digest.bytes.data(), static_cast<int>(digest.bytes.size()));
  return "sha256-" + std::string(base64.begin(), base64.begin() + length);
}

/// JSON that is harmless inside of a <script> element: "</script>" and "<!--" need their first character.
std::string embedded_json(const Json& data) {
  std::string text = data.dump(-1, ' ', true, Json::error_handler_t::replace);
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos;)
    text.replace(at, 1, "\\u003c");
  return text;
}

std::string about_checkpoint(const format::Checkpoint& checkpoint) {
  const auto& manifest = checkpoint.manifest();
  const auto files = [](size_t count, std::string_view kind) {
    return fmt::format("{} {}{}", count, kind, count == 1 ? "" : "s");
  };
  if (!manifest) return fmt::format("An ordinary checkpoint of {}.", files(checkpoint.files().size(), "file"));
  const format::Origin& origin = manifest->origin;
  return fmt::format("A packed repository, made by {} from {}{}.", manifest->program,
                     files(manifest->source.size(), "source file"),
                     origin.repository.empty() ? "" : fmt::format(" of {}@{}", origin.repository, origin.revision));
}

/// A page is there to be passed on: what stands before the "@" of an address (user:password) is not to be in it.
void remove_credentials(PageTexts& texts) {
  texts.place = without_passwords(texts.place);
  texts.before_reason = without_passwords(texts.before_reason);
  for (std::string& warning : texts.warnings)
    warning = without_passwords(warning);
}

struct Sides {
  std::optional<Arrangement> before;
  Arrangement after;
};

Sides ordinary_sides(const format::Checkpoint& checkpoint, const format::Grouping& by, PageTexts& texts) {
  texts.before_title = "The files as they are";
  texts.after_title = fmt::format("As reshard --by {} would lay them out", format::to_string(by));
  return {present_arrangement(checkpoint), planned_arrangement(by, checkpoint)};
}

/// What is wrong with the kept headers concerns one half of the page; what stops the reading ends it.
bool is_about_headers(const Error& error) {
  switch (error.kind) {
    case ErrorKind::not_found:
    case ErrorKind::invalid:
    case ErrorKind::corrupt:
    case ErrorKind::unsupported: return true;
    case ErrorKind::io:
    case ErrorKind::network:
    case ErrorKind::budget:
    case ErrorKind::conflict:
    case ErrorKind::cancelled: return false;
  }
  return false;
}

Result<Sides> packed_sides(const format::Checkpoint& checkpoint, format::Repository& repository, PageTexts& texts,
                           const std::stop_token& stop) {
  const Json& recipe = checkpoint.manifest()->recipe;
  const auto by = recipe.find("by");
  texts.after_title = by != recipe.end() && by->is_string()
                          ? fmt::format("The files as they are, packed by {}", by->get<std::string>())
                          : "The files as they are";
  texts.before_title = "The source's shards, by the headers that were kept of them";
  auto shards = source_shards(repository, checkpoint, stop);
  if (!shards && !is_about_headers(shards.error())) return shards.error();
  Sides sides{std::nullopt, present_arrangement(checkpoint)};
  if (shards) {
    sides.before = source_arrangement(*shards, checkpoint);
  } else {
    texts.before_reason = shards.error().message;
  }
  return sides;
}

}  // namespace

std::string page_around(const Json& data) {
  const std::string catalogue = embedded_json(data);
  const std::string style_digest = policy_digest(kPageStyle);
  const std::string script_digest = policy_digest(kPageScript);
  const std::array<std::pair<std::string_view, std::string_view>, 5> parts = {{{"style-digest", style_digest},
                                                                               {"script-digest", script_digest},
                                                                               {"style", kPageStyle},
                                                                               {"script", kPageScript},
                                                                               {"catalogue", catalogue}}};
  // Front to back through the frame alone: what was put in is never looked through for places.
  std::string page;
  std::string_view rest = kPageFrame;
  for (size_t open = 0; (open = rest.find("{{")) != std::string_view::npos;) {
    const size_t close = rest.find("}}", open);
    const std::string_view name = rest.substr(open + 2, close - open - 2);
    const auto part = std::find_if(parts.begin(), parts.end(), [&](const auto& each) { return each.first == name; });
    DSPACK_CHECK(part != parts.end(), "the page's frame has an unknown place");
    page.append(rest.substr(0, open)).append(part->second);
    rest.remove_prefix(close + 2);
  }
  return page.append(rest);
}

Result<std::string> inspect_html(const format::Checkpoint& checkpoint, format::Repository& repository,
                                 const std::optional<format::Grouping>& by, const std::stop_token& stop) {
  if (checkpoint.manifest() && by) {
    return Error{ErrorKind::invalid,
                 fmt::format("{}: is packed already; --by is for a checkpoint that is yet to be packed",
                             repository.description())};
  }
  PageTexts texts{.place = repository.description(),
                  .about = about_checkpoint(checkpoint),
                  .before_title = {},
                  .before_reason = {},
                  .after_title = {},
                  .warnings = checkpoint.warnings()};
  Sides sides;
  if (checkpoint.manifest()) {
    if (const auto reason = unreadable_reason(*checkpoint.manifest())) {
      texts.warnings.push_back(
          fmt::format("other programs cannot read it: {}; reshard unpack makes an ordinary checkpoint", *reason));
    }
    TRY_ASSIGN(sides, packed_sides(checkpoint, repository, texts, stop));
  } else {
    sides = ordinary_sides(checkpoint, by.value_or(format::Grouping{}), texts);
  }
  remove_credentials(texts);
  TRY_ASSIGN(const Json data, page_data(checkpoint, texts, sides.before, sides.after));
  return page_around(data);
}

}  // namespace dspack::reshard
